"""The stages `evaluate-live` and `evaluate-VARIANT`: the tasks of `[[validate.tasks]]` on one model, each answer in a file of its own.

Called by `handlers/__main__.py`. Whatever happens to a task becomes a figure or a reason: a stage fails only where the box does. An attempt
that was interrupted goes on behind the last answer.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.figures import EvaluationFigures, TaskFigures
from daemon.contract.jobs.messages import StageContext, Verdict
from daemon.contract.jobs.options import Task
from daemon.contract.jobs.plan import check_of, effective_variants, with_fallbacks
from daemon.contract.jobs.tasks import EVALUATE, LIVE, evaluated, tasks_of
from handlers.child.progress import Reporter, StageOutput
from handlers.models.code import copy_code
from handlers.models.files import copy_tokenizer
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.validate import record
from handlers.validate.engines.registry import EngineSpec, artifact_spec, engines, live_spec
from handlers.validate.tasks import command, comparing, harness
from handlers.validate.tasks.answers import CORRECT, RETRY, Answer, Unanswered, read_answer
from handlers.validate.workers.client import EngineWorker, WorkerFailed, toolchain_of


def run_live(context: StageContext, reporter: Reporter) -> StageOutput:
    """Run all tasks of the job's variants on the live model."""
    asking = _Asking(context, reporter, live=True)
    figures = {}
    with asking.model():
        for task in _of_job(context):
            answer = asking.answer(task)
            figures[task.name] = TaskFigures(failed=asking.failed[task.name]) if answer is None else comparing.measured(answer)
    return StageOutput(figures=EvaluationFigures(tasks=figures).written(), warnings=asking.warnings, reusable=not asking.failed)


def _of_job(context: StageContext) -> tuple[Task, ...]:
    """The tasks that are run on any variant of the job, or on a form that may take the place of one."""
    export, tasks = context.work.export, context.work.validation.tasks
    variants = with_fallbacks(effective_variants(export.variants, export.quantization))
    return tuple(task for task in tasks if evaluated((task,), variants))


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Run the tasks of the variant that the stage is named after, and compare them with the live model's answers.

    An artifact that did not pass its check is not run: there is no check of its tasks then.
    """
    variant = context.stage.removeprefix(EVALUATE)
    output = StageOutput()
    if (why := _not_worth(context, variant)) is not None:
        output.warnings.append(f"The tasks were not run on {variant}: {why}.")
        return output
    asking, figures = _Asking(context, reporter, variant=variant), dict[str, TaskFigures]()
    wanted = tasks_of(context.work.validation.tasks, variant)
    with asking.model():
        for task in context.work.validation.tasks:
            if task.name in wanted:
                figures[task.name] = _compared(task, asking, Path(context.inputs[LIVE]))
    undecided = context.work.validation.undecided
    check = comparing.judged(variant, figures, asking.remedies, spoilt=asking.spoilt, undecided=undecided)
    if check.verdict is not Verdict.PASSED:
        reporter.warn(f"{variant}: {check.verdict.value}: {'; '.join(check.reasons)}")
    output.checks.append(check)
    output.warnings += asking.warnings
    output.reusable = not asking.failed
    return output


def _compared(task: Task, asking: _Asking, live: Path) -> TaskFigures:
    reference = read_answer(live / f"{task.name}.json")
    if reference is None:
        asking.without_live(task, live)
    answer = None if reference is None else asking.answer(task)
    if answer is None or reference is None:
        return _limited(TaskFigures(failed=asking.failed[task.name]), task)
    try:
        return comparing.compared(task, answer, reference)
    except Unanswered as error:
        asking.lost(task, error)
        return _limited(comparing.measured(answer).plus(failed=str(error)), task)


def _reason_file(folder: Path, task: Task) -> Path:
    """The file that says why the live model has no answer of a task."""
    return folder / f"{task.name}.failed"


def _limited(figures: TaskFigures, task: Task) -> TaskFigures:
    """The figures with the limit of their task, where it has one."""
    return figures if task.drop is None else figures.plus(drop=task.drop)


def _not_worth(context: StageContext, variant: str) -> str | None:
    """Why an artifact is not run, as a clause; None where it is."""
    check = check_of(variant)
    folder = context.inputs.get(check.name) if check else None
    if folder is None or not (path := Path(folder, record.CHECK)).is_file():
        return "it could not be checked"
    verdict = json.loads(path.read_bytes()).get("verdict")
    publishes = verdict == "failed" and context.work.validation.on_failed_check == "publish"
    return None if verdict == "passed" or publishes else f"its check says {verdict}"


class _Asking:
    """The tasks' answers of one model, and what went wrong."""

    def __init__(self, context: StageContext, reporter: Reporter, variant: str = "", *, live: bool = False) -> None:
        self._context, self._reporter, self._variant, self._live = context, reporter, variant, live
        self._worker: EngineWorker | None = None
        self._open = contextlib.ExitStack()
        self.failed: dict[str, str] = {}
        """Task → why it could not be run, as a clause."""
        self.remedies: list[str] = []
        self.warnings: list[str] = []
        self.spoilt = ""
        """Why the artifact can't be published any more."""

    @contextlib.contextmanager
    def model(self) -> Iterator[None]:
        """Hold the model, once a task of the harness needs it."""
        with self._open:
            yield

    def answer(self, task: Task) -> Answer | None:
        """The answer, which may be there already; None where there is none, which `failed` says."""
        kept = Path(self._context.staging, f"{task.name}.json")
        if (answer := read_answer(kept)) is not None:
            return answer
        tasks = self._context.work.validation.tasks
        self._reporter.progress(tasks.index(task) / len(tasks), task.name)
        try:
            answer = self._ask(task)
        except command.Changed as error:
            self.spoilt = "" if self._live else f"{task.name}: {error}"
            self.lost(task, error)
        except Unanswered as error:
            self.lost(task, error)
        except WorkerFailed as error:
            self._reporter.checkpoint()
            if error.details:
                print(error.details, flush=True)  # into the attempt's log, which the remedy names
            self.lost(task, Unanswered(f"the model could not be run: {error.cause}", error.remedy))
        else:
            answer.write(kept)
            _reason_file(Path(self._context.staging), task).unlink(missing_ok=True)
        return answer

    def lost(self, task: Task, error: Unanswered) -> None:
        """Go on without a task, and say why."""
        model, remedy = "the live model" if self._live else self._variant, error.remedy
        if remedy == CORRECT:
            remedy = f"{remedy}; `ckptd logs --job {self._context.job} --stage {self._context.stage}` shows what it printed"
        self.failed[task.name] = str(error)
        self.remedies.append(remedy)
        warning = f"The task {task.name} gave nothing of {model}: {error}; {remedy}"
        self.warnings.append(f"{warning}.")
        self._reporter.warn(warning)
        if self._live:
            _reason_file(Path(self._context.staging), task).write_text(str(error), "utf-8")

    def without_live(self, task: Task, live: Path) -> None:
        """Go on without a task that the live model gave nothing of: the stage of that has warned."""
        path = _reason_file(live, task)
        why = f": {path.read_text('utf-8')}" if path.is_file() else ""
        self.failed[task.name] = f"there is no answer of the live model to compare with{why}"
        self.remedies.append(RETRY)

    def _ask(self, task: Task) -> Answer:
        if task.harness:
            worker, rendering = self._loaded(), Rendering.of(ModelFiles.of_job(self._context))
            return harness.ask(task, worker, self._context, rendering, self._reporter.checkpoint)
        merged = next((name for name, variant in catalog().variants.items() if "merged" in variant.traits), "")
        same = read_answer(Path(self._context.inputs.get(LIVE, ""), f"{task.name}.json"))
        if self._variant == merged and same is not None:
            return same  # the live model as a folder is this one
        folder = self._live_folder() if self._live else Path(self._context.inputs[self._variant])
        model = command.Model(merged if self._live else self._variant, live=self._live, folder=folder)
        return command.ask(task, model, self._context, self._reporter.checkpoint)

    def _live_folder(self) -> Path:
        """The merged model's folder with a tokenizer: the merge has none, and transformers then makes up an empty one without a word."""
        context, folder = self._context, Path(self._context.temporary, "model")
        if folder.is_dir():
            return folder
        folder.mkdir()
        merge, pin, base = Path(context.inputs["merge"]), Path(context.pin), Path(context.base) if context.base else None
        copy_tokenizer(pin, base, folder)
        for source in (base, pin) if base else (pin,):
            copy_code(source, folder, trusted=context.work.merge.trust_remote_code)
        for path in merge.iterdir():
            if not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
        return folder

    def _loaded(self) -> EngineWorker:
        """The model's worker. Raises Unanswered where no engine runs it, WorkerFailed."""
        if self._worker is None:
            context, (spec, place) = self._context, self._spec()
            worker = EngineWorker(self._variant or "live", spec, Path(context.temporary), context.limits, toolchain=place)
            self._worker = self._open.enter_context(worker)
        self._worker.load()
        return self._worker

    def _spec(self) -> tuple[EngineSpec, Path | None]:
        context = self._context
        subject = record.read_reference(Path(context.inputs["reference"])).subject
        if subject.kind != "causal":
            raise Unanswered(
                f"lm-evaluation-harness is for language models, and this model is for {subject.task}", "give a command instead"
            )
        if self._live:
            return live_spec(context, "torch" if context.base is None else "live", subject), None
        limits = catalog().variants[self._variant].limits
        if subject.engine not in engines().get(limits.engine, {}):
            raise Unanswered(f"no engine here runs {self._variant}", "leave it out of the task's variants, or give a command instead")
        return artifact_spec(context, limits.engine, context.inputs[self._variant], subject), toolchain_of(context, limits.toolchain)
