"""How much faster a draft makes a server: its acceptance, measured by the server itself."""
