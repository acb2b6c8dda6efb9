"""Data sets in other projects' layouts: read to be taken in, and written for who must."""
