"""The JSON files of this package: what each must hold to be read. Other entries are let through, as they are.

`read_record` refuses a file that does not have the form of its schema. Files of older versions lack entries, so only
those are required without which nothing could be done with the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from because_rl.errors import BecauseError
from because_rl.reading import damaged, read_json

if TYPE_CHECKING:
    from pydantic import BaseModel


def read_record(path: Path, schema: str) -> dict[str, Any]:
    """The content of a JSON file, checked against a schema of `schemas`."""
    return check_record(read_json(path), schema, str(path))


def check_record(value: Any, schema: str, where: str) -> dict[str, Any]:
    """The value as it is, if it has the form of the schema; `where` begins the sentence of an error."""
    from pydantic import ValidationError

    try:
        schemas()[schema].model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise BecauseError(
            f"{where} is not {_ARTICLE.get(schema, 'a')} {schema}: {place + ': ' if place else ''}{first['msg']}.",
            need="the file as it was written.",
            fix="restore it from a copy, or delete it and make it again.",
        ) from error
    return value


_ARTICLE = {"evaluation": "an", "agent": "an", "oracle table": "an"}
CHECKSUM = "sha256"


def record_sha256(record: Mapping[str, Any], digest: Callable[[bytes], str]) -> str:
    """The checksum of a record, which covers all its other entries."""
    rest = {name: value for name, value in record.items() if name != CHECKSUM}
    return digest(json.dumps(rest, sort_keys=True, allow_nan=False).encode())


def verify_checksum(record: Mapping[str, Any], path: Path, digest: Callable[[bytes], str]) -> None:
    """Refuse a record with another checksum than its content has; older ones have none."""
    if CHECKSUM in record and record[CHECKSUM] != record_sha256(record, digest):
        raise damaged(path, "checksum mismatch")


@cache
def schemas() -> dict[str, type[BaseModel]]:
    """Name of a kind of file -> its schema. Made when it is first needed: most commands read no such file."""
    from pydantic import BaseModel, ConfigDict, Field, model_validator

    Rate = Annotated[float, Field(ge=0, le=1)]
    Count = Annotated[int, Field(ge=0, le=2**53)]
    Positive = Annotated[int, Field(ge=1, le=2**53)]
    Bits = Annotated[str, Field(pattern="^[01]+$")]
    Word = Annotated[str, Field(max_length=500)]
    Key = Annotated[str, Field(pattern=r"^[\w][\w.,+=-]*$", max_length=300)]

    class Record(BaseModel):
        model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)

    class Provenance(Record):
        when: Word
        revision: Word = ""

    class Recipe(Record):
        world: Word
        behaviour: Word

    class Outcomes(Record):
        """Success by seed and by scene, which must agree."""

        per_seed: list[Rate] | None = None
        outcomes: list[Bits] | None = None
        success: Rate | None = None

        @model_validator(mode="after")
        def agree(self) -> Outcomes:
            rates, outcomes = self.per_seed, self.outcomes
            if rates and outcomes:
                solved = [seed.count("1") / len(seed) for seed in outcomes]
                if len(rates) != len(solved) or any(abs(a - b) > 1e-6 for a, b in zip(rates, solved, strict=True)):
                    raise ValueError("'per_seed' contradicts 'outcomes'")
                if len({len(seed) for seed in outcomes}) > 1:
                    raise ValueError("'outcomes' are not of one length")
            if rates and self.success is not None and abs(self.success - sum(rates) / len(rates)) > 1e-3:
                raise ValueError("'success' contradicts 'per_seed'")
            return self

    class OneStep(Record):
        error: float
        factors: dict[str, list[float]]

    class Cell(Outcomes):
        sha256: Word = ""
        label: Word = ""
        dataset: Word = ""
        seeds: list[Count] = Field(default=[])
        steps: float | None = None
        recipe: Recipe | None = None
        provenance: Provenance | None = None
        maps: list[dict[str, Any]] = Field(default=[])

        @model_validator(mode="after")
        def count_seeds(self) -> Cell:
            if self.per_seed is not None and self.seeds and len(self.per_seed) != len(self.seeds):
                raise ValueError("'per_seed' is not as long as 'seeds'")
            return self

    class GridCell(Cell):
        label: Word
        dataset: Word
        split: Word
        spurious: Count
        seeds: list[Count] = Field(min_length=1)
        per_seed: list[Rate] = Field(min_length=1)
        episodes: Positive
        recipe: Recipe
        provenance: Provenance
        stages: dict[str, dict[str, float]] = Field(default={})
        seconds: dict[str, float] = Field(default={})
        one_step: OneStep | None = None
        scenes_draw: Count | None = None

    class TableRow(Outcomes):
        draws: list[Count] | None = None
        method: Word = ""
        task: Word = ""
        cells: list[Key] = Field(default=[])

    class Table(Record):
        rows: list[TableRow]

    class OracleRow(Record):
        world: Word
        split: Word
        success: Rate
        low95: Rate
        high95: Rate

    class OracleTable(Record):
        rows: list[OracleRow]

    class DatasetRow(Record):
        dataset: Word
        success_rate: Rate | None = None
        success_ci95: list[float] | None = Field(default=None, min_length=2, max_length=2)

    class DatasetTable(Record):
        rows: list[DatasetRow]

    class KeptEpisode(Record):
        seed: Count
        scene: Count
        solved: bool
        actions: list[int | list[float]] = Field(min_length=1)

    class Evaluation(Outcomes):
        method: Word
        dataset: Word
        world: Word
        split: Word
        spurious: Count
        episodes: Positive
        success: Rate
        low95: Rate
        high95: Rate
        per_seed: list[Rate] = Field(min_length=1)
        episodes_kept: list[KeptEpisode] = Field(default=[])

        @model_validator(mode="after")
        def kept_exist(self) -> Evaluation:
            if any(k.seed >= len(self.per_seed) or k.scene >= self.episodes for k in self.episodes_kept):
                raise ValueError("'episodes_kept' has an episode that is not in the evaluation")
            return self

    class Edge(Record):
        source: Word = Field(alias="from")
        to: Word
        status: Word
        weight: float
        kept: bool = True
        p: float = 1.0
        effect: float = 0.0
        statistic: float = 0.0
        detectable: float | None = None
        why: str = ""
        needs: str = ""
        weight_ci95: list[float] = Field(default=[0.0, 0.0], min_length=2, max_length=2)

    class MaskEdge(Edge):
        p: float
        effect: float
        statistic: float

    class Discovery(Record):
        """Settings with which a graph was discovered."""

        test: Word | None = None
        threshold: float | None = None
        n: Count | None = None
        rows_used: Count | None = None

    class Sufficiency(Record):
        loss: float
        reopened: list[Word]
        suffices: bool = True

    class Score(Record):
        f1: float
        shd: int = 0
        missed: list[list[str]]
        false: list[list[str]]

    class Graph(Record):
        inputs: list[Word] = Field(min_length=1)
        targets: list[Word] = Field(min_length=1)
        edges: list[Edge]
        dataset: Word = ""
        settings: Discovery = Field(default=Discovery())
        sufficiency: dict[str, Sufficiency] = Field(default={})
        score: Score | None = None

        @model_validator(mode="after")
        def names_known(self) -> Graph:
            if any(edge.source not in self.inputs or edge.to not in self.targets for edge in self.edges):
                raise ValueError("an edge names a factor that is not in the graph")
            return self

    class Mask(Graph):
        edges: list[MaskEdge]  # type: ignore[assignment]

    class Regime(Record):
        regime: Positive
        rows: Count
        episodes: Count

    class RegimeEdge(Record):
        source: Word = Field(alias="from")
        to: Word
        verdict: Literal["stable", "bound", "open"]
        regimes: list[Positive] = Field(min_length=1)

    class Regimes(Record):
        """Regimes of a log; a run is [episode, first step, steps, regime]."""

        regimes: list[Regime] = Field(min_length=1)
        edges: list[RegimeEdge]
        runs: list[Annotated[list[Count], Field(min_length=4, max_length=4)]]

        @model_validator(mode="after")
        def rows_agree(self) -> Regimes:
            rows = {entry.regime: entry.rows for entry in self.regimes}
            for _, _, steps, regime in self.runs:
                rows[regime] = rows.get(regime, 0) - steps
            if any(rows.values()):
                raise ValueError("'runs' contradict the rows of 'regimes'")
            return self

    class MetricsLine(Record):
        stage: Word
        step: Count
        __pydantic_extra__: dict[str, list[float | None]]

    class Failure(Record):
        job: Word
        cells: list[Word]
        reason: str
        details: str = ""

    class RunHead(Record):
        method: Word
        dataset: str

    class Run(RunHead):
        config: dict[str, Any]
        data_sha256: Word
        factors: dict[str, Any]
        horizon: Positive
        seeds: list[Count] = Field(min_length=1)
        chunk: Positive
        rounds: Positive
        mask: list[list[float]] | None
        world: Word | None
        spurious: Count
        finished: list[str] | None
        seconds: float = 0.0
        sha256: Word
        provenance: Provenance

    class Agent(Record):
        method: Word
        config: dict[str, Any]
        factors: dict[str, Any]
        horizon: Positive
        seeds: list[Count] = Field(min_length=1)
        sha256: Word
        weights_sha256: Word

    class Asked(Record):
        factors: dict[str, Any]

    class Fit(Record):
        asked: Asked
        result: dict[str, Any] | None = None

    class Interval(Record):
        value: float
        low: float
        high: float

    class EstimatedWorth(Record):
        worth: Interval
        gain: Interval

    class PolicyWorth(EstimatedWorth):
        policy: Word
        by: Word
        verdict: Word
        why: str
        estimators: dict[str, EstimatedWorth]
        world_model: dict[str, float] | None
        imitated: dict[str, Any] | None
        why_no_dr: str | None

        @model_validator(mode="after")
        def answer_is_an_estimator(self) -> PolicyWorth:
            if self.by not in self.estimators:
                raise ValueError("'by' is not one of the estimators")
            return self

    class Worth(Record):
        quantity: Word
        behaviour: Interval
        policies: list[PolicyWorth] = Field(min_length=1)

    class Checksums(Record):
        metadata: Word
        episodes: list[Word]

    return {
        "cell": Cell,
        "cell of a grid": GridCell,
        "table": Table,
        "row of a table": TableRow,
        "oracle table": OracleTable,
        "table of datasets": DatasetTable,
        "evaluation": Evaluation,
        "graph": Graph,
        "mask": Mask,
        "file of regimes": Regimes,
        "line of metrics": MetricsLine,
        "record of a failure": Failure,
        "head of a run": RunHead,
        "run": Run,
        "agent": Agent,
        "fit": Fit,
        "worth": Worth,
        "file of checksums": Checksums,
    }
