"""Every code that a fault of ours can have: the stable names that programs compare, and that people search for and alert on.

Each says what it means and, after "To do:", what helps; tests hold that it agrees with the remedies that the code is raised
with. docs/fault-codes.md is made of this file (`python -m tests.layers.fault_codes`). A code keeps its meaning and its spelling once it is
released: it stands in journals, reports and other people's alerts.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NewType, TypeAlias

OtherCode = NewType("OtherCode", str)
"""A code that is none of ours, as a plain string. Three kinds: `exit-N` for a child that ended by itself with exit code N above 128; what
an old journal or another version of ckptd says; and the codes of a format from another package, written there as
`OtherCode("package.what-failed")`: its package's name and a dot before it keep it apart from ours, which have no dot."""


class FaultCode(StrEnum):
    """The codes of ckptd itself. As JSON, in the journal and in the log each is its string."""

    # Command line and configuration

    ALREADY_RUNNING = "already-running"
    """Another ckptd uses the state directory.

    To do: Stop the other ckptd. A second daemon needs a `state.directory` of its own.
    """
    BAD_OPTION = "bad-option"
    """A command-line option is missing or has an invalid value, or contradicts another option.

    To do: Correct the option; the message says which values are valid, for example `--add style=0.5`.
    """
    CHECKPOINT_GONE = "checkpoint-gone"
    """The checkpoint to retry was deleted, is damaged, or its content has changed.

    To do: Train or copy the checkpoint again; it is then exported automatically. If only an adapter to add is missing, run `ckptd export
    PATH` on the checkpoint.
    """
    CONFIG_EXISTS = "config-exists"
    """The file for a first configuration already exists.

    To do: Keep that file, choose another file name, or use --force to replace it.
    """
    CONFIG_INVALID = "config-invalid"
    """The configuration file is not TOML, or has unknown keys, wrong values or values that contradict each other.

    To do: Correct the line, or each key, that the message names; `ckptd check` lists all problems at once. Values that may hold
    secrets are not shown; addresses of services belong into `notify.urls` or the file of `notify.urls_file`. Ray needs
    its package, or an interpreter with it in `cluster.ray.python`.
    """
    CONFIG_MISSING = "config-missing"
    """The given configuration file does not exist, none was given or found, or there is nothing to make one of.

    To do: Correct the path of `--config` or of the variable CKPTD_CONFIG, or write a file with `ckptd init`, with `--root` where no
    checkpoint is there yet.
    """
    CONFIG_UNREADABLE = "config-unreadable"
    """The configuration file can't be read, or is not UTF-8.

    To do: Give this user read access to the file, and save it as UTF-8.
    """
    EXPORT_DAMAGED = "export-damaged"
    """A file of a published export is missing, or has another size than its manifest says.

    To do: Export the checkpoint again; `ckptd verify` lists all that is damaged.
    """
    FOREIGN_CODE = "foreign-code"
    """An artifact that is checked again holds code, which runs when it is loaded.

    To do: Give `ckptd verify` the option `--trust` if you trust who made it.
    """
    NO_ANSWER = "no-answer"
    """The running daemon did not answer a reload request in time.

    To do: Look at the daemon's log with `ckptd logs`, then try again.
    """
    NO_ANSWERS = "no-answers"
    """An export keeps no answers of its live model, so its artifacts can't be checked again.

    To do: Export the checkpoint again with `validate.keep_answers = true`.
    """
    NO_EXPORT = "no-export"
    """There is no published export in, below or above the path to verify.

    To do: Give the folder of an export or of a run, or `output.directory`.
    """
    NO_JOURNAL = "no-journal"
    """No daemon has run with the given state directory.

    To do: Give the daemon's configuration with `--config`; if no daemon has run yet, start one with `ckptd run`.
    """
    NO_REPORT = "no-report"
    """There is no export report for one of the two sides to compare.

    To do: Give the folder of an export, or wait until the export has finished (`ckptd status`).
    """
    NO_SUCH_JOB = "no-such-job"
    """No export in the journal has the given id, or several ids begin with it.

    To do: Take an id from `ckptd list`, and give enough of it to match only one job.
    """
    NO_SUCH_MESSAGE = "no-such-message"
    """No notification of that number was given up by a target that is configured now.

    To do: `ckptd notify list` shows the numbers. For a URL in `notify.urls` that was changed there is nothing to resend.
    """
    NO_SUCH_PATH = "no-such-path"
    """The given path does not exist.

    To do: Correct the path; for an adapter to add, correct it in `merge.add` or `--add`.
    """
    NO_SUCH_RUN = "no-such-run"
    """No run with that name has an export, or several do.

    To do: Give the name of a run from `ckptd list`, or the folder that holds its exports.
    """
    NO_SUCH_STAGE = "no-such-stage"
    """The export has no stage of that name, or the export was not named.

    To do: Give the export with `--job`, and a stage that `ckptd show` lists.
    """
    NO_TERMINAL = "no-terminal"
    """A command needs to ask a question, but there is no terminal.

    To do: Give the answers as options, or use --yes to accept the proposed values.
    """
    NOT_A_CHECKPOINT = "not-a-checkpoint"
    """The directory to export holds neither an adapter nor model weights.

    To do: Give the directory that a trainer wrote, with an adapter or model weights in it; `ckptd explain PATH` shows what is there.
    """
    NOT_A_DIRECTORY = "not-a-directory"
    """The given path is a file, but a directory is needed.

    To do: Give the directory that contains the file.
    """
    NOT_RUNNING = "not-running"
    """No daemon runs with the state directory.

    To do: Start the daemon with `ckptd run` or as a service; if a daemon does run with this state directory, restart it.
    """
    NOT_WRITABLE = "not-writable"
    """The daemon can't write to a folder that the configuration names.

    To do: Give the daemon's user write access there, or set the key that the message names to another folder; a service also needs the
    folder in `ReadWritePaths=`.
    """
    NOT_YET = "not-yet"
    """Files of the export to retry are still being removed.

    To do: Try again in a moment.
    """
    NOTHING_TO_RETRY = "nothing-to-retry"
    """The export to retry is unknown, has not finished, or has succeeded with the same settings.

    To do: Retry an export that failed, is partial or was cancelled; one that succeeded can be retried after the configuration has changed.
    """
    OUTPUT_IN_CHECKPOINT = "output-in-checkpoint"
    """The output of `ckptd export` would be inside the checkpoint, a watched root or another export.

    To do: Give another folder with `--output`.
    """
    PAGE_UNAVAILABLE = "page-unavailable"
    """The page does not answer: another program listens on its address, or its thread died again and again. Exports go on without it.

    To do: End that program, or change `page.listen` and run `ckptd reload`; otherwise look for the traceback in the log.
    """
    RELOAD_REFUSED = "reload-refused"
    """The changed configuration is wrong, or the daemon works on another file; the daemon keeps the previous one.

    To do: Correct what the message names, then run `ckptd reload` again.
    """
    RUN_CONFIG_INVALID = "run-config-invalid"
    """A run's own `ckptd.toml` is wrong and not used.

    To do: Correct the run's `ckptd.toml`; the message lists the keys that it may set.
    """
    SETUP_FAILED = "setup-failed"
    """A command that `ckptd install-service` runs failed.

    To do: Read the command's output, correct the cause, and run `ckptd install-service` again; steps that are already done are not
    repeated.
    """
    SEVERAL_DAEMONS = "several-daemons"
    """Several daemons run, and the command does not say which one to use.

    To do: Give the configuration of one daemon with `--config`; the message lists them.
    """
    THREAD_LOST = "thread-lost"
    """A thread of the daemon died repeatedly, or had the same error in every round; the daemon ended.

    To do: Look for the traceback in the log and report it; the service manager restarts ckptd automatically.
    """
    VARIANTS_LOST = "variants-lost"
    """`ckptd export` would take variants away that are published of this checkpoint.

    To do: Name them with `--to` too, give another folder with `--output`, or replace the export with `--force`.
    """
    WRONG_STATE = "wrong-state"
    """The command can't be used on an export in its current state.

    To do: Check the state with `ckptd show JOB`; the message says which commands are possible.
    """

    # Disk, memory and rights

    DISK_FULL = "disk-full"
    """A write failed because the disk is full or a quota is used up.

    To do: Free space on the file system that the message names, or set `output.directory` or `state.directory`, whichever lies there, to a
    larger one; the work continues automatically.
    """
    DISK_LOW = "disk-low"
    """A file system that ckptd writes to has too little free space; work waits until there is enough.

    To do: Free space as `ckptd status` proposes; nothing is lost, and the work continues automatically.
    """
    DISK_NOW = "disk-now"
    """There is too little free disk space now for the data to write; the work waits.

    To do: Free space (or delete files, if the file system has no free inodes) on the file system that the message names, set
    `output.directory`, `state.directory` or `pin.directory` to a larger disk, or lower `limits.disk_reserve`.
    """
    MEMORY_NEVER = "memory-never"
    """A stage needs more memory than ckptd may ever use on this machine.

    To do: Export on a larger machine, raise `limits.memory_fraction`, or leave the variant out of `export.variants`.
    """
    MEMORY_NOW = "memory-now"
    """Too little memory is available for a stage now; the stage waits.

    To do: Nothing; the stage starts when there is enough memory. To start it sooner, free memory.
    """
    NO_PERMISSION = "no-permission"
    """The daemon's user has no permission for this operation on the path.

    To do: Give the daemon's user access with the command in the message, or run the command as the daemon's user.
    """
    NO_PROCESS = "no-process"
    """The system could not start a process for a stage: no memory, or too many processes or open files. It is tried again.

    To do: Check what uses the machine's memory and processes, and which limits the daemon's user has; the work continues automatically.
    """
    NOT_ENOUGH_MEMORY = "not-enough-memory"
    """A merge needs the whole model in memory, and too little memory is available.

    To do: Wait for memory, or merge on a larger machine; a plain LoRA on linear layers needs far less.
    """
    OS_ERROR = "os-error"
    """The operating system refused an operation, for a reason that has no code of its own.

    To do: Look at the path that the message names, and at the attempt's log.
    """
    READ_ONLY = "read-only"
    """The file system is read-only.

    To do: Look for disk errors in the kernel's log, and mount the file system for writing again.
    """
    ROOT_SILENT = "root-silent"
    """The file system of a watched root does not answer.

    To do: Look at the mount and its server; when the file system answers, ckptd watches it again automatically.
    """
    SYSTEM_RESOURCES = "system-resources"
    """A temporary system error: no file handles, no system memory, or a device error.

    To do: Look at the system's limits (`ulimit -a`) and at the kernel's log.
    """

    # Journal

    JOURNAL_DAMAGED = "journal-damaged"
    """The journal is not a valid database; the next start rebuilds it.

    To do: Start ckptd again: it sets the file aside and rebuilds the journal. Then check that disk.
    """
    JOURNAL_GONE = "journal-gone"
    """The journal file was deleted or replaced while it was in use.

    To do: If the log says that it was put back, only find out what deleted it; otherwise stop ckptd, put the right file there and start it
    again.
    """
    JOURNAL_NOT_DURABLE = "journal-not-durable"
    """A change was written to the journal, but a power failure may lose it.

    To do: Check the disk of the state directory and the kernel's log.
    """
    JOURNAL_REBUILT = "journal-rebuilt"
    """The journal was damaged and has been rebuilt (log only).

    To do: Check that disk; `ckptd status` says what the journal was rebuilt from, and `ckptd verify --journal` checks it.
    """
    JOURNAL_UNAVAILABLE = "journal-unavailable"
    """The journal can't be read or written now.

    To do: Correct the cause that the message names: end the other program that uses the file, free space or memory, give this user access,
    or keep the state on a local disk. A running daemon tries again automatically.
    """
    JOURNAL_UPGRADE = "journal-upgrade"
    """The journal is intact, but it could not be upgraded to this version's schema.

    To do: Install the version that wrote the journal again, and report the message.
    """
    JOURNAL_VERSION = "journal-version"
    """Another version of ckptd wrote the journal, with a schema that this one does not know.

    To do: Install that version again, or set another `state.directory`.
    """

    # Checkpoints and their bases

    ACCELERATE_STATE = "accelerate-state"
    """The checkpoint is what accelerate's `save_state` wrote, without a configuration, or with several models.

    To do: Put the training's config.json and tokenizer (for an adapter its adapter_config.json) into the run's directory once, or set
    `base.map` for checkpoints that name no base; of several models, save the one that you want with save_pretrained.
    """
    BASE_DAMAGED = "base-damaged"
    """Files of the base model are truncated or missing.

    To do: Download or copy the base model again.
    """
    BASE_NOT_FOUND = "base-not-found"
    """No folder with the base model's config.json and weights was found.

    To do: Set `base.map` for the name that the message gives, or add the folder that contains the model to `base.search`, and run `ckptd
    reload`, or put the model there: the export waits for it (`limits.away_hours`) and then continues automatically. For `ckptd export`,
    give `--base`.
    """
    CHECKPOINT_DAMAGED = "checkpoint-damaged"
    """The checkpoint's files are truncated, missing or contradict each other.

    To do: Save it again from the trainer, or copy it again completely; it is exported automatically when it is complete.
    """
    CHECKPOINT_LOST = "checkpoint-lost"
    """A checkpoint was deleted before ckptd could pin it (log only).

    To do: Raise the trainer's save_total_limit, or lower `watch.settle_seconds`.
    """
    CONVERT_FIRST = "convert-first"
    """The checkpoint is complete, in a form of its trainer's own (Megatron, Orbax, diffusers, some of verl's) that ckptd does not read.

    To do: Run the trainer's own converter, with the command in the message, and export what it writes.
    """
    DCP_SHARDED = "dcp-sharded"
    """The checkpoint is torch.distributed.checkpoint's sharded state, without a model, or with an adapter but no adapter_config.json.

    To do: Put the training's adapter_config.json into the checkpoint's or the run's directory, or give the directory that contains the
    model's own state.
    """
    DEEPSPEED_SHARDED = "deepspeed-sharded"
    """The checkpoint is DeepSpeed's sharded state, in a form that ckptd can't merge, or of an adapter without its adapter_config.json.

    To do: For an adapter, put the training's adapter_config.json into the checkpoint's or the run's directory; otherwise run
    DeepSpeed's zero_to_fp32 where it was trained, or train with stage3_gather_16bit_weights_on_model_save.
    """
    FSDP_SHARDED = "fsdp-sharded"
    """The checkpoint is FSDP's sharded state of an adapter, without its adapter_config.json.

    To do: Put the training's adapter_config.json into the checkpoint's or the run's directory; the checkpoint is then exported
    automatically.
    """
    LIGHTNING_CHECKPOINT = "lightning-checkpoint"
    """The checkpoint is Lightning's and can't be read: its pickle contains objects, or there are several files without a step.

    To do: Load it in the trainer with load_from_checkpoint, call save_pretrained and export that folder, or keep objects out of the
    checkpoint with save_hyperparameters(ignore=[...]).
    """
    LITGPT_CHECKPOINT = "litgpt-checkpoint"
    """The checkpoint is litgpt's; its tensors have other names and shapes than transformers uses.

    To do: Convert it with the litgpt commands in the message, save the model with save_pretrained and export that folder.
    """
    SHARDS_UNMATCHED = "shards-unmatched"
    """The tensors of a sharded checkpoint do not match the model, or match it in more than one way.

    To do: Set the base that was trained with `--base` or `base.map`, or save the model in the trainer with save_pretrained and export that
    folder.
    """
    SOURCE_AWAY = "source-away"
    """Something that an export reads (a base, texts, a toolchain, an adapter to add, the output's mount) is missing or unreadable now.

    To do: Nothing if it comes back by itself; else put it back or make it readable, or correct the path of an adapter in `merge.add`. The
    export waits for it (`limits.away_hours`) and then continues automatically; after that, run `ckptd queue retry JOB`.
    """
    STILL_WRITTEN = "still-written"
    """The checkpoint changes while it is read.

    To do: Wait until the trainer, or the copy, has finished.
    """

    # Stages, as the daemon runs them

    BAD_JOB = "bad-job"
    """The child process could not use its job file.

    To do: Restart the daemon if ckptd or a format's package was replaced while it ran; otherwise run `ckptd check`.
    """
    BAD_OUTPUT = "bad-output"
    """A stage's output can't be published or recorded: it contains a link or a pipe, or figures that are not JSON.

    To do: Leave the variant out of `export.variants`, and report it to the stage's authors.
    """
    BAD_RESULT = "bad-result"
    """The child's result file is truncated, from another version, or does not match its files.

    To do: Check whether another program or another version of ckptd writes into the state directory; the attempt is repeated automatically.
    """
    CANCELLED_THERE = "cancelled-there"
    """Somebody cancelled the job of an attempt in its scheduler.

    To do: Find out who cancels jobs there; `ckptd queue cancel` ends an export for good.
    """
    CRASHED = "crashed"
    """The child's process crashed inside a library.

    To do: Read the stack in the attempt's log; another version of the library that it names may not crash.
    """
    HUNG = "hung"
    """The child process showed no activity for 15 minutes.

    To do: Read the attempt's log; set `limits.jobs` and `limits.stages` to 1 if the machine was swapping.
    """
    KILLED = "killed"
    """A signal that ckptd did not send ended the child process.

    To do: Find out who sends signals on this machine: an administrator, a job limit, a container's memory limit.
    """
    LOST_THERE = "lost-there"
    """The scheduler does not know the job of an attempt any more, and it left no result.

    To do: Read the attempt's log, which `ckptd show JOB` names, and what the scheduler wrote beside it.
    """
    MEMORY_LIMIT = "memory-limit"
    """The attempt used more memory than its limit.

    To do: Raise `limits.memory_fraction`, or leave the variant out on this machine.
    """
    MEMORY_PRESSURE = "memory-pressure"
    """The attempt was ended because the machine's available memory fell below `limits.memory_reserve`.

    To do: Nothing; it is tried again when there is enough memory. To start it sooner, free memory.
    """
    MEMORY_UNEXPECTED = "memory-unexpected"
    """The attempt used several times the memory that was estimated for it, and was ended: a file of the model may be made to do that.

    To do: If you trust the model, run `ckptd queue retry JOB`: ckptd then expects as much. Otherwise leave the variant out.
    """
    NO_CONTROL_GROUP = "no-control-group"
    """The child process could not enter its control group.

    To do: Check `Delegate=` in the service's unit.
    """
    NO_RESULT = "no-result"
    """The child process ended without a result file.

    To do: Read the attempt's log, which `ckptd show JOB` names.
    """
    NODE_LOST = "node-lost"
    """The machine that ran an attempt was lost to its scheduler.

    To do: Nothing; it is handed in again.
    """
    NOT_OURS = "not-ours"
    """A folder that only ckptd may use, such as `.staging` in `output.directory`, is a link, a file, or another user's.

    To do: Move it away and start ckptd again, or set `output.directory` to a folder in which only ckptd and people you trust may write.
    """
    OTHER_PARENT = "other-parent"
    """The child process found that its daemon was gone, and ended.

    To do: Start only one daemon on this state directory.
    """
    OTHER_VERSIONS = "other-versions"
    """The machine that was to run an attempt has other releases of the libraries than the daemon.

    To do: Install the same releases there, or let `cluster.python` name an environment on the shared file system.
    """
    OUT_OF_MEMORY = "out-of-memory"
    """Memory ran out: the kernel killed the child process, or a library could not allocate memory.

    To do: Free memory, export when the training is over, raise `limits.memory_fraction`, or leave the variant out.
    """
    POISON = "poison"
    """The daemon died five times while the stage ran; the stage is not tried again.

    To do: Look for "Out of memory" in the kernel's log and in the attempts' logs, then run `ckptd queue retry JOB`.
    """
    PREEMPTED = "preempted"
    """The job of an attempt had to give way to another one.

    To do: Nothing; it is handed in again.
    """
    RESULT_UNWRITABLE = "result-unwritable"
    """The child process could not write its result file.

    To do: Check the state directory and the kernel's log.
    """
    RETRY = "retry"
    """An earlier attempt failed, and the stage waits for its next attempt.

    To do: Nothing; it is tried again automatically.
    """
    SCHEDULER_AWAY = "scheduler-away"
    """The scheduler gave no answer when an attempt was handed in, and has no job of its name.

    To do: Nothing; it is handed in again.
    """
    SCHEDULER_REFUSED = "scheduler-refused"
    """The scheduler does not take the job of an attempt.

    To do: Correct the keys of `[cluster]`, or ask the site's administrator; `ckptd check` submits a probe.
    """
    SCHEDULER_TIME = "scheduler-time"
    """The job of an attempt reached the scheduler's time limit.

    To do: Nothing; it is handed in again with twice the time, as far as `cluster.most_minutes` allows.
    """
    SCRATCH_UNUSABLE = "scratch-unusable"
    """The scratch folder of a machine is missing, can't be written or has no room, or the output can't be copied from it.

    To do: Let `scratch` of the queue name a folder with room that each of its machines has, or leave it out.
    """
    SKIPPED = "skipped"
    """A stage that this one needs gave no output.

    To do: Solve the problem of the stage that the message names.
    """
    STAGE_OUTPUT_GONE = "stage-output-gone"
    """The output of a finished stage no longer exists; the stage is repeated.

    To do: Do not change `output.directory` while exports run; the stage is repeated automatically.
    """
    TARGET_TAKEN = "target-taken"
    """The export's folder is another ckptd's or another checkpoint's, or a link or an export is in the way; the job has ended.

    To do: Give one of the two another `output.directory` or `output.naming`, or move away what the message names; if the other ckptd is
    gone for good, remove the record that the message names. Then run `ckptd queue retry JOB`. Or run `ckptd export PATH`, which uses
    another folder.
    """
    TIMEOUT = "timeout"
    """The attempt ran longer than `limits.stage_timeout`.

    To do: Raise `limits.stage_timeout` if the stage still made progress.
    """
    TIMING = "timing"
    """A stage waits because this stage or another one measures speed, and nothing else may run during that.

    To do: Nothing; it starts automatically within minutes.
    """
    TOO_MANY_PROCESSES = "too-many-processes"
    """The attempt had, or tried to start, more than 128 processes, or more than the kernel allows.

    To do: Read the attempt's log, which says what it was doing; no stage needs that many.
    """
    TURN = "turn"
    """An export waits because other exports use all that `limits.jobs` and `limits.threads` allow.

    To do: Nothing; it starts when the others have finished. Or raise `limits.jobs` or `limits.threads`.
    """
    UNEXPECTED = "unexpected"
    """An unexpected error; the log has its traceback.

    To do: Read the log; if the input looks right, report it with the traceback.
    """
    VERIFYING = "verifying"
    """The export waits while the output of earlier attempts is compared with its digests.

    To do: Nothing; it continues automatically.
    """
    WINDOW_CLOSED = "window-closed"
    """`schedule.heavy` does not allow the stage now; it waits for its time window.

    To do: Nothing; it waits for its time window. To start it sooner, change `schedule.heavy`.
    """
    WORKER_NOT_BEGUN = "worker-not-begun"
    """The scheduler ran the job of an attempt, which could not begin.

    To do: Make sure that the machines see the state directory and the interpreter by the same paths; `ckptd check` submits a probe.
    """

    # Model folders, as stages read them

    BAD_INDEX = "bad-index"
    """The index of the weight files is invalid, or names files that do not exist.

    To do: Copy or download the model again, with its index file.
    """
    BAD_MODEL_CONFIG = "bad-model-config"
    """A field in config.json has the wrong type.

    To do: Correct the field in the file that the message names, or copy that file again from its source.
    """
    CONVERSION_DIFFERS = "conversion-differs"
    """`ckptd convert` read other values in the file that it wrote than in its source.

    To do: Try again; if it happens again, check the disk and the memory of this machine.
    """
    DATA_EMPTY = "data-empty"
    """The files that `validate.data` or `validate.prompts` names have no text that can be used.

    To do: Set `validate.data` or `validate.prompts` to a folder or file of rows with "text", "prompt" and "completion", "messages", or
    "instruction" and "output".
    """
    DATA_NOT_FOUND = "data-not-found"
    """The file or folder that `validate.data` names does not exist.

    To do: Set `validate.data` to a folder or file of a data set, or to "".
    """
    DATA_UNREADABLE = "data-unreadable"
    """The files that `validate.data` names can't be read as arrow, parquet, JSON or text.

    To do: Set `validate.data` to a folder or file of a data set (arrow, parquet, .jsonl, .json, .csv or .txt), or to "".
    """
    FILE_MISSING = "file-missing"
    """A file that the folder should contain does not exist.

    To do: Copy or download the folder again completely.
    """
    LIBRARY_REFUSES = "library-refuses"
    """A library, transformers or PEFT for example, can't work with the files of the checkpoint, the base or the model.

    To do: Copy the files again from their source, and check that the library loads them; if it does, report it with the attempt's log.
    """
    NAME_TAKEN = "name-taken"
    """`ckptd convert` would give two files of the folder the same name.

    To do: Move one of the two out of the folder.
    """
    NO_TENSORS = "no-tensors"
    """A weight file, or an adapter's, is not a table of tensors, or contains none.

    To do: Save the model or the adapter again with save_pretrained, or take another checkpoint.
    """
    NO_WEIGHTS = "no-weights"
    """The model folder contains no weights.

    To do: Give a folder that contains a transformers model.
    """
    NOT_JSON = "not-json"
    """A JSON file can't be parsed.

    To do: Copy the file again from its source.
    """
    NOT_SAFETENSORS = "not-safetensors"
    """The weights are pickled `.bin` files, but safetensors files are needed.

    To do: Convert the weights to safetensors.
    """
    NOTHING_TO_CONVERT = "nothing-to-convert"
    """The folder given to `ckptd convert` has no pickled weights.

    To do: Give a folder with a file that ends in .bin, .pt, .pth or .ckpt.
    """
    PROMPTS_EMPTY = "prompts-empty"
    """The prompts file has no text, or its text gives no tokens.

    To do: Put one prompt on each line of the file that `validate.prompts` names, of a .jsonl file one row with a text; or set it to "".
    """
    PROMPTS_NOT_FOUND = "prompts-not-found"
    """The file that `validate.prompts` names does not exist.

    To do: Set `validate.prompts` to a UTF-8 text file with one prompt per line, or to "".
    """
    PROMPTS_NOT_TEXT = "prompts-not-text"
    """The file that `validate.prompts` names is not UTF-8 text, or not what the end of its name says.

    To do: Set `validate.prompts` to a UTF-8 text file with one prompt per line, to a .jsonl file with one row per line, or to "".
    """
    TOO_MUCH_CODE = "too-much-code"
    """The model's folder contains more or larger Python files than a model's own code needs.

    To do: Leave only the model's own modules in its folder, or set `merge.trust_remote_code` to false.
    """
    TRUNCATED_WEIGHTS = "truncated-weights"
    """A weight file is shorter than its header says, or changed while it was read.

    To do: Copy or download the file again, and do not change it while it is read; or take another checkpoint.
    """
    UNKNOWN_DTYPE = "unknown-dtype"
    """The weights have a data type that ckptd can't read.

    To do: Save the model in 16 or 32 bits.
    """
    UNSAFE_PICKLE = "unsafe-pickle"
    """The weights are a pickle that contains more than tensors; it is never executed.

    To do: Find out who wrote the file before anything else opens it; then save it again from the trainer, with safe_serialization=True.
    """

    # Merge

    ADAPTER_DTYPE = "adapter-dtype"
    """The adapter's weights have a data type that ckptd can't read.

    To do: Save the adapter as float32.
    """
    ADAPTER_FOR_ANOTHER_BASE = "adapter-for-another-base"
    """The adapter's shapes do not match the base, or it was trained on another base.

    To do: Set the base (`base.map`, `--base`) to the model that the adapter was trained on, with its enlarged vocabulary if training
    enlarged it.
    """
    ADAPTER_KEY_UNMATCHED = "adapter-key-unmatched"
    """Modules of the adapter match no weight of the base.

    To do: Check that the base is the one that the adapter was trained on; the message names it.
    """
    ADAPTER_NOT_ALONE = "adapter-not-alone"
    """The export also merges other adapters, or scales its own by a factor, so the adapter alone is not what was verified.

    To do: Leave pytorch-adapter out of `export.variants`, or export the checkpoint without `merge.add` and `merge.weight`.
    """
    ADAPTER_NOT_LOADABLE = "adapter-not-loadable"
    """PEFT can't load the adapter into the base.

    To do: Give the base that the adapter was trained on, or save the adapter again so that adapter_config.json fits its weights.
    """
    ADAPTER_NOT_MERGEABLE = "adapter-not-mergeable"
    """The adapter's changes can't be written into the base's weights.

    To do: Serve the adapter together with its base through PEFT; the message says whether another way of training or saving helps.
    """
    ADAPTER_SHARDED = "adapter-sharded"
    """The adapter was saved while its parameters were sharded.

    To do: Save the adapter with its parameters gathered; DeepSpeed ZeRO-3 and FSDP keep shards.
    """
    ADAPTERS_NOT_ADDITIVE = "adapters-not-additive"
    """Adapters are to be added or weighted, but one of them is not a plain LoRA over the base.

    To do: Leave `merge.add`, `merge.weight` and `--add` out, or merge the adapters one after another: each export uses the result of the
    one before as its base.
    """
    BAD_ADAPTER_CONFIG = "bad-adapter-config"
    """adapter_config.json is invalid, or a field in it has the wrong type.

    To do: Set the field that the message names to its value in training, install the PEFT version that it was trained with, or save the
    adapter again.
    """
    BASE_CHANGED = "base-changed"
    """A file of the base changed while it was read.

    To do: Do not change the base while it is read; it is tried again automatically.
    """
    BASE_MISSING = "base-missing"
    """The checkpoint is an adapter, and no base was given.

    To do: Set the base model in `base.map` or `base.search`.
    """
    BASE_NOT_LOADABLE = "base-not-loadable"
    """transformers can't load the base.

    To do: Check that the base loads with transformers.
    """
    BASE_NOT_WANTED = "base-not-wanted"
    """The checkpoint is a full fine-tune, which needs no base, but a base was given.

    To do: Do not set a base for this run.
    """
    BASE_WEIGHT_UNCHANGED = "base-weight-unchanged"
    """The adapter's configuration says that it changes a weight, but the adapter contains nothing for it.

    To do: Check that the base is the one that the adapter was trained on; the message names it.
    """
    CHECKPOINT_CHANGED = "checkpoint-changed"
    """A file of the full fine-tune changed while it was read.

    To do: Do not change the checkpoint while it is read; it is tried again automatically.
    """
    DAMAGED_QUANTIZATION = "damaged-quantization"
    """The packed weights of a quantized model contradict each other.

    To do: Copy or download the base again, or use its 16-bit original.
    """
    DTYPE_OVERFLOW = "dtype-overflow"
    """A weight is too large for its data type in the output.

    To do: Set `merge.dtype` to "base", or to the wider type that the message names.
    """
    HALF_A_PAIR = "half-a-pair"
    """A module of the adapter has only one of its two matrices.

    To do: Take another checkpoint; this one is truncated, or was saved while its parameters were sharded.
    """
    HEAD_INCOMPLETE = "head-incomplete"
    """Weights of the head that the task needs are missing in the adapter and in the base.

    To do: Train with the head named in modules_to_save; the values from the training are lost.
    """
    MERGE_NOT_EXACT = "merge-not-exact"
    """The written weights are not equal to base + adapter.

    To do: Check this machine's disk and memory and merge again; if it happens again, report it with adapter_config.json.
    """
    MERGED_WEIGHTS_DIFFER = "merged-weights-differ"
    """Base + adapter is not equal to the whole model that the trainer saved in the adapter's directory.

    To do: Put the whole model into a separate directory, where it is exported as a full fine-tune; or remove its weights, if the adapter is
    the right one.
    """
    MISSING_ROWS = "missing-rows"
    """Training enlarged the vocabulary, and the adapter does not contain the new rows of the embeddings or of the head.

    To do: Train with the module that the message names in modules_to_save, or save the adapter with save_embedding_layers=True; or set
    `merge.fill_rows`.
    """
    NEEDS_PEFT = "needs-peft"
    """The adapter can only be merged through PEFT, which does not support the options that `[merge]` sets.

    To do: Leave `merge.dtype`, `merge.max_shard_size` and `merge.base` at their defaults.
    """
    NO_ADAPTER = "no-adapter"
    """The folder contains no adapter weights.

    To do: Correct the path in `merge.add` or `--add` and run `ckptd export PATH` on the checkpoint; for a full fine-tune, leave
    pytorch-adapter out of `export.variants`.
    """
    NON_FINITE_WEIGHTS = "non-finite-weights"
    """A merged weight is NaN or infinite.

    To do: Look at the training's loss and take an earlier checkpoint; if the message names the base as the cause, copy the base again; give
    adapters that are added smaller weights (`merge.weight`, `merge.add`).
    """
    PATTERNS_TOO_SLOW = "patterns-too-slow"
    """Matching the patterns of adapter_config.json takes more work than any adapter needs.

    To do: Name the modules in plain text, or write the pattern without nested repetitions.
    """
    QUANTIZED_BASE = "quantized-base"
    """The base has a quantization that ckptd can't undo.

    To do: Set the base (`base.map`, `--base`) to the original model in 16 bits.
    """
    QUANTIZED_CHECKPOINT = "quantized-checkpoint"
    """The full fine-tune has a quantization that ckptd can't undo.

    To do: Set `merge.dtype` to "base".
    """
    RANK_MISMATCH = "rank-mismatch"
    """The adapter's weights (their shapes, or DoRA's magnitudes) and adapter_config.json contradict each other.

    To do: Use weights and adapter_config.json from the same save.
    """
    UNKNOWN_ARCHITECTURE = "unknown-architecture"
    """transformers has no class for the architecture that config.json names.

    To do: Install a transformers release that supports the architecture; code from model folders is never run.
    """
    UNKNOWN_LAYOUT = "unknown-layout"
    """A quantized base's weights are stored in another layout than its loaded model says.

    To do: Set `merge.base` to "original".
    """

    # Export to PyTorch and ONNX

    ACTIVATIONS_MISMATCH = "activations-mismatch"
    """The graph's activations differ from those of the model.

    To do: Leave the onnx-activations variants out of `export.variants`, and keep the attempt's log for a report.
    """
    BLOCK_SIZE = "block-size"
    """The quantizer can't pack the model's matrices with this block size.

    To do: Set `onnx.symmetric` to true and `onnx.algorithm` to "rtn", or use onnx-int4.
    """
    BUDGET_MISSED = "budget-missed"
    """No choice of bits keeps to both the size and the divergence of `export.target`.

    To do: Raise `export.target.size` or `export.target.kl`; the message says what each of them would need.
    """
    BUILDER_FAILED = "builder-failed"
    """onnxruntime-genai's builder failed, or the folder that it made can't be run.

    To do: Leave the variant out of `export.variants`, and read the attempt's log.
    """
    CONFIG_MISMATCH = "config-mismatch"
    """config.json and the weights' shapes contradict each other.

    To do: Use the config.json and tokenizer that belong to these weights, in the checkpoint's, the run's or the base's folder; for a
    module of sentence-transformers, do what the message says.
    """
    EXPORT_FAILED = "export-failed"
    """No strategy gave an ONNX graph that agrees with torch.

    To do: Do what the message says about the failed strategy, or leave the onnx variants out of `export.variants`.
    """
    FORM_NOT_POSSIBLE = "form-not-possible"
    """The model is of a type, or its layers are of a kind, that this form can't hold.

    To do: Use the variant that the message names, and leave this one out of `export.variants`. For engines of TensorRT, set
    `limits.device` to cuda if this machine has a GPU.
    """
    FP16_OVERFLOW = "fp16-overflow"
    """The fp16 graph's values overflow or are too far from fp32's.

    To do: Use onnx-int8-weight, whose activations stay fp32, and leave onnx-fp16 out of `export.variants`.
    """
    INVALID_GRAPH = "invalid-graph"
    """onnxruntime refuses a graph that was made from another one, or its inputs or outputs differ.

    To do: Leave the variant out of `export.variants`, and read the attempt's log.
    """
    NO_ACTIVATIONS = "no-activations"
    """The settings name no activation, or the model or its graph can't return those that they name.

    To do: Set `onnx.kinds` to what the model returns, for example to ["hidden_states"], or leave the onnx-activations variants out of
    `export.variants`.
    """
    NO_CALIBRATION = "no-calibration"
    """The model can't be calibrated with text.

    To do: Leave onnx-int8-static out of `export.variants`.
    """
    NO_PADDING_TOKEN = "no-padding-token"
    """The model uses the padding token to find the end of a text, but config.json names no padding token.

    To do: Set pad_token_id in the base's config.json.
    """
    NO_SUCH_LAYER = "no-such-layer"
    """`onnx.layers` names a layer that the model does not have.

    To do: Set `onnx.layers` to layer numbers that the model has; the first layer is 0.
    """
    NOT_FINITE = "not-finite"
    """A weight to quantize is NaN or infinite.

    To do: Train the checkpoint again, or leave the quantized variants out of `export.variants`.
    """
    NOTHING_TO_QUANTIZE = "nothing-to-quantize"
    """The graph has no matrix multiplication with a constant weight.

    To do: Leave the variant out of `export.variants`.
    """
    TEXTS_TOO_SHORT = "texts-too-short"
    """None of the texts for calibration or measurement has two tokens or more.

    To do: Put longer lines into the file that `validate.prompts` names.
    """
    UNSUPPORTED_ARCHITECTURE = "unsupported-architecture"
    """The format does not support this architecture.

    To do: Leave the variants of this format out of `export.variants`; the message names others that work.
    """

    # Checks of artifacts, and the report

    ARTIFACT_MISSING = "artifact-missing"
    """A requested artifact was not made (report only).

    To do: Follow the advice in the fault of the failed stage, then run `ckptd queue retry JOB`.
    """
    ARTIFACT_REJECTED = "artifact-rejected"
    """An artifact was made but failed its check, and is not published (report only).

    To do: Compare the figures in the report with the limits; leave the variant out of `export.variants`, use the variant that the report
    proposes, or set less strict limits in `[validate.limits]` if the figures are good enough for you.
    """
    BAD_RECORD = "bad-record"
    """A file that an earlier stage of the validation wrote can't be read.

    To do: Run `ckptd queue retry JOB`; report it if it happens again.
    """
    DEVICE_MISSING = "device-missing"
    """The artifact runs on a device, a GPU for example, that this machine does not have: it could not be checked here.

    To do: Check it on a machine with that device; if this one has it, set `limits.device` to cuda. Or name the variant in
    `validate.publish_unverified`.
    """
    ENGINE = "engine"
    """The engine that runs the artifact raised an error.

    To do: Export the variant again; if it happens again, leave it out of `export.variants`. Where the text is too long for an engine of
    TensorRT, raise `tensorrt.max_tokens`.
    """
    ENGINE_MISSING = "engine-missing"
    """The engine that runs the artifact can't be imported.

    To do: Install ckptd's dependencies again, or those of the package that brings the format; for an engine in a toolchain, run `ckptd
    toolchain check NAME`.
    """
    GRAPH_UNEXPECTED = "graph-unexpected"
    """The graph's inputs, outputs or cache are not the usual ones of this kind of model.

    To do: Leave the variant out of `export.variants`: another export of the same model gives the same graph. Of a graph that ckptd
    made, report it as an error of ckptd.
    """
    GRAPH_UNREADABLE = "graph-unreadable"
    """A graph of the artifact, or the description of its graphs, is missing or can't be loaded.

    To do: Give the folder of an artifact. If it is one, copy it again, or export the variant again: its files are damaged.
    """
    LOGITS = "logits"
    """The artifact's logits can't be compared with the reference's.

    To do: Export the variant again; if it happens again, leave it out of `export.variants`.
    """
    MISSING_WEIGHTS = "missing-weights"
    """Weights of the model are missing from its files or have another shape.

    To do: Copy the model's files again; after a merge, read the log of the stage `merge`.
    """
    NO_JOB_FACTS = "no-job-facts"
    """The report stage was started without its data from the journal.

    To do: Let the daemon start the report stage; it can't be run by hand.
    """
    NO_PAIRS = "no-pairs"
    """The tokenizer can't encode pairs of texts, which the task needs.

    To do: Leave the variant out of `export.variants`.
    """
    NO_START_TOKEN = "no-start-token"
    """The model's files do not say which token decoding starts with.

    To do: Set decoder_start_token_id in the model's config.json.
    """
    PACKAGE_MISSING = "package-missing"
    """A package that the model's tokenizer or the format needs is not installed.

    To do: Install the package that the message names with pip.
    """
    PROCESSOR_NOT_LOADABLE = "processor-not-loadable"
    """What prepares pictures or sound for the model is missing, or the installed packages can't load it.

    To do: Install the package that the cause names into ckptd's environment (Pillow, torchvision), or give the base its processor's files.
    To publish the model without a check with pictures or sound, name the variant in `validate.publish_unverified`.
    """
    REFERENCE_NOT_FINITE = "reference-not-finite"
    """The live model's logits are NaN or infinite.

    To do: Look at the run's loss, and export an earlier checkpoint.
    """
    TASK_UNKNOWN = "task-unknown"
    """The model is of a kind that ckptd has no check for, for example one that finds objects in pictures.

    To do: To publish it without a check, name the variant in `validate.publish_unverified`.
    """
    TOKENIZER_MISMATCH = "tokenizer-mismatch"
    """The tokenizer gives token ids that the model does not have.

    To do: Give the base the tokenizer that belongs to the model. If the training added tokens, let it resize the embeddings too
    (model.resize_token_embeddings).
    """
    TOKENIZER_NOT_FOUND = "tokenizer-not-found"
    """No tokenizer files were found.

    To do: Put the tokenizer's files into the checkpoint's or the base's folder; formats other than pytorch need a fast tokenizer
    (tokenizer.json).
    """
    TOKENIZER_TOO_COSTLY = "tokenizer-too-costly"
    """The tokenizer needs more time, memory or tokens for a few short texts than any in use.

    To do: Use the tokenizer with which the model was trained; look at its normalizer and its patterns.
    """
    TOKENIZER_UNREADABLE = "tokenizer-unreadable"
    """The tokenizer's files can't be read.

    To do: Copy all files of the tokenizer again from their source.
    """
    WORKER_LOST = "worker-lost"
    """The process that runs an artifact ended or no longer answers.

    To do: Read the attempt's log and look for "Out of memory" in the kernel's log; free memory, raise `limits.memory_fraction`, or give the
    export more threads (`limits.threads`); then run `ckptd queue retry JOB`.
    """

    # Deliveries

    DELIVERY_ANSWERS = "delivery-answers"
    """A server that loaded the model does not answer as the fine-tuned model does; the model was taken back from it.

    To do: Read in the message what the answers are like: those of the base mean that the server did not apply the adapter. Run `ckptd
    deliver` again when the server is set up for this model.
    """
    DELIVERY_CONFLICT = "delivery-conflict"
    """Somebody else changed the far end while something was delivered, or another version has that place.

    To do: Look at what lies there. Run `ckptd deliver` again, with --force to replace it.
    """
    DELIVERY_FAR_END = "delivery-far-end"
    """The far end of a delivery can't be reached, or did not answer as it should.

    To do: Look at the service and the network between here and there; the delivery is tried again by itself.
    """
    DELIVERY_FULL = "delivery-full"
    """The far end of a delivery has no room left, or a quota is used up.

    To do: Free space there, or let the target's `keep` remove older versions; the delivery is tried again by itself.
    """
    DELIVERY_LIBRARY = "delivery-library"
    """A delivery needs a package or program that is not installed.

    To do: Install what the message names; `pip install 'ckptd[deliver]'` installs the packages of all kinds.
    """
    DELIVERY_MISMATCH = "delivery-mismatch"
    """What lies at the far end after a delivery is not what was sent.

    To do: Look for a proxy or a cache between here and there, and run `ckptd deliver` again; nothing was made visible.
    """
    DELIVERY_REFUSED = "delivery-refused"
    """The far end of a delivery refuses the credentials, the right to write, or the request itself.

    To do: Give the target's secret the right to write there, or correct the target in the configuration, and run `ckptd deliver` again.
    """
    DELIVERY_SOURCE = "delivery-source"
    """The export that is to be delivered is gone, changed, or lacks what is to be delivered of it.

    To do: Run `ckptd verify`, and export the checkpoint again; or name published variants in the target's `variants`, or
    in `export.variants` what is to be made.
    """

    # Toolchains

    INSTALL_FAILED = "install-failed"
    """pip or venv failed for an unknown reason; see the log.

    To do: Read the log that the message names.
    """
    NO_NETWORK = "no-network"
    """pip could not reach its package index.

    To do: Check the network, and pip's index, proxy and certificate (`pip config list`), then try again.
    """
    NO_PACKAGE = "no-package"
    """pip's package index has no suitable version of a package for this Python or machine.

    To do: Configure pip with an index that has the package (`pip config list`).
    """
    NO_SUCH_TOOLCHAIN = "no-such-toolchain"
    """There is no toolchain with that name.

    To do: Use one of the names that the message lists; `ckptd toolchain list` shows them too.
    """
    NO_VENV = "no-venv"
    """This Python can't create virtual environments.

    To do: Install your system's package for it (python3-venv on Debian and Ubuntu).
    """
    NOT_INSTALLED = "not-installed"
    """The toolchain to remove is not installed.

    To do: Nothing; `ckptd toolchain list` shows what is installed.
    """
    PROBE_FAILED = "probe-failed"
    """An installed toolchain does not work, or did not answer in time.

    To do: Run `ckptd toolchain install NAME --again`.
    """
    TOOLCHAIN_BUSY = "toolchain-busy"
    """Another process is installing or removing this toolchain.

    To do: Wait until the other process has finished.
    """
    TOOLCHAIN_CHANGED = "toolchain-changed"
    """A toolchain's packages, or files of them, are not the ones that were installed.

    To do: Run `ckptd toolchain install NAME --again`.
    """
    TOOLCHAIN_COMING = "toolchain-coming"
    """A stage waits until a toolchain is installed, which ckptd does by itself (`toolchains.auto_install`).

    To do: Wait until that has finished; the log that the message names shows what it does.
    """
    TOOLCHAIN_IN_USE = "toolchain-in-use"
    """A stage is running in the toolchain that is to be replaced or removed.

    To do: Wait until the stage has finished.
    """
    TOOLCHAIN_MISSING = "toolchain-missing"
    """A stage needs a toolchain that is not installed.

    To do: Run `ckptd toolchain install NAME` with the name in the message, or leave the variant out of `export.variants`.
    """

    # The demo and its trainings

    DEMO_PROCESS = "demo-process"
    """A process of the demo ended before its work was done.

    To do: Read the log that the message names; `ckptd demo --keep DIR` keeps it.
    """
    NO_BASE = "no-base"
    """The folder of the demo's base model has no config.json.

    To do: Make the base first with handlers.demo.make_base.
    """
    NOT_EMPTY = "not-empty"
    """The output folder is not empty.

    To do: Give a new folder; for the demo, with `--keep`.
    """


Code: TypeAlias = FaultCode | OtherCode
"""What a fault's code can be: one of ours, or a string that is none."""


def code_of(text: str) -> Code:
    """The member that `text` is the value of; `text` itself, as an OtherCode, where there is none."""
    try:
        return FaultCode(text)
    except ValueError:
        return OtherCode(text)
