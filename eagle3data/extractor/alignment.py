"""Every shard, before its commit: do its states belong to its tokens?

Two probes that cost next to nothing beside the engine. The witness: each sample's last row must
foretell, through the target's own head, the token that the engine chose from its own logits. The
token identity: windows of rows of the lowest captured layer must name their own tokens, by class
means of the run's own earlier windows. What the probes can't tell yet is left to `validate`.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from eagle3data.extractor.preflight import OnNotice
from eagle3data.schema.digest import sequence_digest
from eagle3data.schema.errors import CorruptionError, InputError
from eagle3data.schema.manifest import Manifest
from eagle3data.schema.sample import Sample, as_float32
from eagle3data.validation.significance import log_threshold
from eagle3data.validation.token_identity import WIDE_SHIFTS

if TYPE_CHECKING:
    from torch import Tensor

    from eagle3data.storage.model_weights import TargetHead
    from eagle3data.validation.row_features import RowFeatures
    from eagle3data.validation.sample_verdicts import Doubt
    from eagle3data.validation.token_identity import Agreement
    from eagle3data.validation.witness import Reading

WINDOW_ROWS = 96
"""Adjacent rows of a sample that the identity probe looks at."""
WINDOWS_A_SHARD = 64
"""Samples of a shard whose identity is probed; the witness is asked of all."""
REFERENCE_ROWS = 6144
"""Rows of the latest windows that a shard is compared with."""
COLUMNS = 1024
"""Of a row, about so many of its values are looked at, evenly spread: enough to name a token."""
FROZEN_ROWS = 512
"""Rows after which features are standardised once and for all."""
_LOOKS = 8
"""A sample is looked at again as others come: chances of a false alarm, independent at worst."""
_HISTORY = 512
_FEW = 3
_MIN_CLASSES = 8
_COMMITTED = (
    " That shard was committed before enough had been seen to tell: `eagle3data validate`, then "
    "`repair`, put the sample aside."
)
_ADVICE = (
    "The shard in hand was not committed. Run the same command again; if it stops again, the "
    "engine mixes rows up: try --engine transformers, and report it."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Window:
    """Adjacent rows of one sample, `[n, D]` once features are frozen, raw `[n, H]` before."""

    sample_id: str
    shard: int
    first: int
    ids: list[int]
    rows: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class _Witness:
    sample_id: str
    row: npt.NDArray[np.float32]
    token: int
    logprob: float


class AlignmentWatch:
    """Judges each shard of a run by its samples and by those before; any thread may call it."""

    def __init__(
        self,
        manifest: Manifest,
        samples: int,
        url: str,
        load_head: Callable[[], TargetHead],
        on_notice: OnNotice,
    ) -> None:
        """See nothing yet.

        Args:
            manifest: of the set that is written.
            samples: of the whole run: so many chances there are of a false alarm.
            url: of the set, for messages.
            load_head: the target's norm and lm_head.
            on_notice: told what can't be checked.
        """
        self._url = url
        self._judging = threading.Lock()
        self._identity = _IdentityWatch(min(manifest.layers), samples)
        self._witness = _WitnessWatch(manifest, load_head, on_notice)

    def see(self, sample: Sample, shard: int) -> None:
        """Take note of a sample that is going to be written to a shard."""
        self._identity.take(sample, shard)
        self._witness.take(sample, shard)

    def require(self, shard: int) -> None:
        """Judge a shard that is to be committed now.

        Raises:
            CorruptionError: its states, or those of the run, are not those of their tokens.
        """
        # One at a time: each computes with all of torch's threads.
        with self._judging:
            problem = self._witness.problem(shard) or self._identity.problem(shard)
        if problem is not None:
            raise CorruptionError(
                problem.kind,
                f"{problem.text} {_ADVICE}",
                url=self._url,
                shard=problem.shard,
                sample_id=problem.sample_id,
            )


@dataclass(frozen=True, kw_only=True)
class _Problem:
    kind: str
    text: str
    shard: int
    sample_id: str | None = None


class _IdentityWatch:
    """The token-identity probe over a run that goes on."""

    def __init__(self, layer: int, samples: int) -> None:
        self._layer = layer
        self._lock = threading.Lock()
        self._log_alpha = log_threshold(samples * len(WIDE_SHIFTS) * _LOOKS)
        self._features: RowFeatures | None = None
        self._windows: deque[_Window] = deque()
        self._rows = 0
        self._done: set[int] = set()
        self._count: Counter[int] = Counter()

    def take(self, sample: Sample, shard: int) -> None:
        with self._lock:
            self._count[shard] += 1
            if self._count[shard] > WINDOWS_A_SHARD:
                return
            features = self._features
        # Not under the lock: at an engine's full speed that alone would hold it half the time.
        window = self._cut(sample, shard)
        if features is not None:
            window = replace(window, rows=features(window.rows))
        with self._lock:
            self._add(window, is_raw=features is None)

    def _add(self, window: _Window, *, is_raw: bool) -> None:
        if is_raw and self._features is not None:
            window = replace(window, rows=self._features(window.rows))
        self._windows.append(window)
        self._rows += len(window.ids)
        if self._features is None and self._rows >= FROZEN_ROWS:
            self._freeze()

    def problem(self, shard: int) -> _Problem | None:
        """What is wrong with a shard, or with one before it that could not be judged then."""
        with self._lock:
            self._done.add(shard)
            del self._count[shard]  # one that is not committed after all may come again
            windows = list(self._windows) if self._features is not None else []
            self._forget()
        return self._look(windows, shard) if len(windows) >= _FEW else None

    def _look(self, windows: Sequence[_Window], shard: int) -> _Problem | None:
        import torch

        from eagle3data.validation.sample_verdicts import SampleJudge
        from eagle3data.validation.token_identity import Sequences, frequent_tokens, measure

        sequences = Sequences.of([window.ids for window in windows])
        classes = frequent_tokens(sequences)
        if len(classes) < _MIN_CLASSES:
            return None
        rows = torch.cat([window.rows for window in windows])
        found = measure(rows, sequences, classes, self._log_alpha)
        if found.shift is None:
            return None
        if found.shift:
            return self._of_the_run(found, shard)
        judge = SampleJudge(found, sequences, self._log_alpha)
        # Those that were judged before too: with more to compare, more can be told.
        for doubt in judge.doubts():
            if doubt.sure:
                window = windows[doubt.sample]
                return self._of_a_sample(doubt, window, judge.typical, shard)
        return None

    def _of_the_run(self, found: Agreement, shard: int) -> _Problem:
        shift = found.shift or 0
        return _Problem(
            kind="shifted",
            shard=shard,
            text=f"over the run so far, row t holds the state of token t{shift:+d}: at layer "
            f"{self._layer} {found.by_shift[shift]:.0%} of rows name that token, "
            f"{found.by_shift[0]:.0%} their own.",
        )

    def _of_a_sample(self, doubt: Doubt, window: _Window, typical: float, shard: int) -> _Problem:
        first, stop = (window.first + at for at in doubt.rows)
        if doubt.shift is None:
            what = "the states are not those of its tokens"
        else:
            what = f"row t holds the state of token t{doubt.shift:+d}"
        return _Problem(
            kind="swapped_samples" if doubt.shift is None else "shifted",
            shard=window.shard,
            sample_id=window.sample_id,
            text=f"from token {first} to {stop} {what}: {doubt.agreement:.0%} of {doubt.tested} "
            f"rows name their own token at layer {self._layer}, elsewhere {typical:.0%}."
            + ("" if window.shard == shard else _COMMITTED),
        )

    def _cut(self, sample: Sample, shard: int) -> _Window:
        """A sample's window: somewhere else in each sample, the same place every time."""
        import torch

        places = max(0, len(sample) - WINDOW_ROWS) + 1
        first = int(sequence_digest([sample.sample_id])[-8:], 16) % places
        states = sample.hidden_states[self._layer]
        step = max(1, states.shape[1] // COLUMNS)
        rows = states[first : first + WINDOW_ROWS, ::step]
        return _Window(
            sample_id=sample.sample_id,
            shard=shard,
            first=first,
            ids=sample.input_ids[first : first + WINDOW_ROWS].tolist(),
            rows=torch.from_numpy(as_float32(rows)),
        )

    def _freeze(self) -> None:
        import torch

        from eagle3data.validation.row_features import RowFeatures

        features = RowFeatures.fitted(torch.cat([window.rows for window in self._windows]))
        self._windows = deque(
            replace(window, rows=features(window.rows)) for window in self._windows
        )
        self._features = features

    def _forget(self) -> None:
        """The oldest windows, but none of a shard that is not done."""
        while self._rows > REFERENCE_ROWS and self._windows[0].shard in self._done:
            self._rows -= len(self._windows.popleft().ids)


class _WitnessWatch:
    """The witness of every sample of every shard."""

    def __init__(
        self, manifest: Manifest, load_head: Callable[[], TargetHead], on_notice: OnNotice
    ) -> None:
        self._final = manifest.final_layer
        self._is_kept = self._final in manifest.layers
        self._load_head, self._on_notice = load_head, on_notice
        self._lock = threading.Lock()
        self._head: TargetHead | None = None
        self._is_head_sought = False
        self._open: dict[int, list[_Witness]] = {}
        self._seen: Reading | None = None

    def take(self, sample: Sample, shard: int) -> None:
        if not self._is_kept:
            return
        if sample.witness_token is not None and sample.witness_logprob is not None:
            found = _Witness(
                sample_id=sample.sample_id,
                row=as_float32(sample.hidden_states[self._final][-1:]),
                token=sample.witness_token,
                logprob=sample.witness_logprob,
            )
            with self._lock:
                self._open.setdefault(shard, []).append(found)

    def problem(self, shard: int) -> _Problem | None:
        head = self._target_head()
        with self._lock:
            mine = self._open.pop(shard, [])
        if head is None or not mine:
            return None
        import torch

        from eagle3data.validation import witness

        reading = witness.read(
            head,
            torch.from_numpy(np.concatenate([one.row for one in mine])),
            torch.tensor([one.token for one in mine]),
            torch.tensor([one.logprob for one in mine], dtype=torch.float32),
            post_norm=False,
        )
        together = reading if self._seen is None else witness.joined([self._seen, reading])
        off, whole = witness.disagreeing(together)
        count = len(together.difference)
        if whole and count >= _FEW:
            return self._of_the_run(together, shard)
        bad = off[-len(mine) :].nonzero().flatten().tolist()
        if bad and not whole:
            at = bad[0]
            return _Problem(
                kind="witness_mismatch",
                shard=shard,
                sample_id=mine[at].sample_id,
                text="the engine's own next token does not follow from the last state of "
                f"{len(bad)} of the shard's {len(mine)} samples: here its log-probability is off "
                f"by {float(reading.difference[at].abs()):.2g} nats, usually by "
                f"{float(together.difference.abs().median()):.2g}. The state is another token's.",
            )
        self._seen = _latest(together)
        return None

    def _of_the_run(self, reading: Reading, shard: int) -> _Problem:
        return _Problem(
            kind="witness_mismatch",
            shard=shard,
            text="the engine's own next token follows from its last state in "
            f"{int(reading.agrees().sum())} of {len(reading.difference)} samples only (its "
            f"log-probability is off by {float(reading.difference.abs().median()):.2g} nats): "
            f"layer {self._final} is not what leaves the last decoder layer, or the states belong "
            "to other tokens, or --model has other weights than the engine.",
        )

    def _target_head(self) -> TargetHead | None:
        if not self._is_head_sought:
            self._is_head_sought = True
            if not self._is_kept:
                self._on_notice("the final layer isn't kept, so no witness is checked.")
                return None
            try:
                self._head = self._load_head()
            except InputError as error:
                self._on_notice(f"the witness is not checked: {error}")
        return self._head


def _latest(reading: Reading) -> Reading:
    names = reading.__dataclass_fields__
    return type(reading)(**{name: getattr(reading, name)[-_HISTORY:] for name in names})
