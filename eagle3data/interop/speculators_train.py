"""`speculators train` with our backend: `torchrun -m eagle3data.interop.speculators_train ...`.

Every flag is theirs, but for those of `interop.speculators_backend`, which must be registered
before their command line is built.
"""

from __future__ import annotations


def main(words: list[str] | None = None) -> None:
    """Train with speculators.

    Args:
        words: their flags; those of the process by default.
    """
    import eagle3data.interop.speculators_backend  # noqa: F401

    _train(words)


def _train(words: list[str] | None) -> None:
    from speculators.train.cli import main as train
    from speculators.train.config import TrainConfig

    train(TrainConfig.resolve(words))


if __name__ == "__main__":
    main()
