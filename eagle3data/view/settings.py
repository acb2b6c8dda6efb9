"""What is looked at, as the command line named it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eagle3data.validation.findings import Report


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that pages may read; requests choose among its contents, never a place.

    Attributes:
        url: root of the data set.
        model: the target, Hugging Face folder or id: for the text of tokens, what its head says,
            and the semantic levels of validation.
        revision: hub revision of the model.
        trust_remote_code: let the model's own code run.
        report: of `validate`, made before; findings are shown from it until a newer one is there.
        run: folder of a training run.
        evaluation: file that `evaluate --out` wrote.
        token: what a visitor has to show; None where only this machine can visit.
    """

    url: str
    model: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    report: Report | None = None
    run: Path | None = None
    evaluation: Path | None = None
    token: str | None = None
