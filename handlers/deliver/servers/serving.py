"""What targets of all servers share: the questions of the export, and the verdict over what the server answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.disk.files import read_bounded
from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.deliver.servers.answers import Answer, Judged, Position, judge, positions_of
from handlers.deliver.servers.asking import ASK, ask, calls_of, unexpected
from handlers.deliver.servers.conversations import Conversation, Reply, conversations_of, difference
from handlers.deliver.servers.options import AnsweringOptions
from handlers.deliver.target import Setting
from handlers.deliver.version import Version, first_that_fits

TOP = 20
"""Tokens that are asked for: as many as servers give."""
REPORT_BYTES = 64 << 20
"""Of a report.json that is read."""
AS_IT_IS = "the order leaves what people are served as it is"


@dataclass(frozen=True)
class Questions:
    """What an export's report has to ask."""

    positions: tuple[Position, ...]
    conversations: tuple[Conversation, ...]


class Serving:
    """Base of the targets; each says how its server is asked."""

    kind: DeliveryKind

    def __init__(self, setting: Setting, options: AnsweringOptions) -> None:
        self.least, self.url, self._chat = setting.share, options.url, options.chat
        self.calls = calls_of(options.url, options.ca_file, setting.secret, self.kind.secret_variables, options.timeout)

    def ask_tokens(self, model: str, ids: Sequence[int]) -> Answer:
        """The most likely tokens behind `ids`; none where they can't be asked. Raises CkptdError."""
        raise NotImplementedError

    def ask_plainly(self, model: str, ids: Sequence[int]) -> Reply:
        """The same in the form in which `ask_chat` answers."""
        return Reply(self.ask_tokens(model, ids))

    def ask_chat(self, model: str, messages: Sequence[Mapping[str, str]]) -> Reply | None:
        """The most likely first tokens of an answer to messages; None where it takes none. Raises CkptdError."""
        said = ask(self.calls, ASK, "/v1/chat/completions", self.chat_request(model, messages), accepted=(200, 400, 404))
        if said.status != 200:
            return None
        document: Any = said.json()
        try:
            choice, tokens = document["choices"][0], document.get("usage", {}).get("prompt_tokens")
            return Reply(self.chat_answer(choice), tokens)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise unexpected(ASK, self.url, "its answer to a conversation has no log-probabilities") from None

    def chat_request(self, model: str, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """The body that asks for it."""
        return {
            "model": model, "messages": list(messages), "max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": TOP,
        }  # fmt: skip

    def chat_answer(self, choice: Json) -> Mapping[int, float] | Mapping[str, float]:
        """The log-probabilities of a choice. Raises KeyError, ValueError and the like."""
        raise NotImplementedError

    def close(self) -> None:
        """Close connections."""
        self.calls.close()

    def part(self, version: Version) -> Version:
        """The variant that the server gets. Raises Permanent where it can take none."""
        name = first_that_fits(self.kind.variants, version.variants)
        if name is None:
            raise Permanent(
                FaultCode.DELIVERY_SOURCE, "choose what the server loads",
                f"the export has only {', '.join(version.variants)}, and the server takes {' or '.join(self.kind.variants)}",
                "add such a variant to export.variants", path=version.folder,
            )  # fmt: skip
        return version.of(name)

    def questions(self, version: Version) -> Questions:
        """What the server is asked. Raises Permanent where the export has nothing to compare with."""
        path = version.folder / "report.json"
        try:
            report = json.loads(read_bounded(path, REPORT_BYTES))
            asked = Questions(positions_of(report), conversations_of(report) if self._chat else ())
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            asked = Questions((), ())
        if not asked.positions:
            raise Permanent(
                FaultCode.DELIVERY_SOURCE, "read what the server must answer", "the export's report has no answers to compare with",
                "export the checkpoint again, with validation; only language models can be compared", path=path,
            )  # fmt: skip
        return asked

    def answers(self, model: str, questions: Questions) -> Sequence[Answer]:
        """What the server answers, by the order of the positions. Raises CkptdError."""
        return [self.ask_tokens(model, position.ids) for position in questions.positions]

    def answers_now(self, model: str, questions: Questions) -> Sequence[Answer] | None:
        """What it answers before anything is changed; None where it does not. Raises Permanent where it refuses us."""
        try:
            return self.answers(model, questions)
        except Permanent as error:
            if error.fault.code == FaultCode.DELIVERY_REFUSED:
                raise
        except CkptdError:
            pass
        return None

    def judged(self, questions: Questions, said: Sequence[Answer], before: Sequence[Answer] | None = None) -> Judged:
        """The verdict over a server's answers."""
        return judge(questions.positions, said, self.least, before)

    def checked(self, model: str, questions: Questions, before: Sequence[Answer] | None = None) -> Json:
        """The figures of a server that answers rightly; `before`: what it answered before it loaded the model. Raises Permanent for one
        that does not."""
        judged = self.judged(questions, self.answers(model, questions), before)
        return self.right(model, questions, judged)

    def right(self, model: str, questions: Questions, judged: Judged) -> Json:
        """The figures of a verdict that is good, once conversations are right too. Raises Permanent."""
        if judged.fault:
            raise self.wrong(judged.fault, model)
        compared = 0
        for conversation in questions.conversations:
            reply = self.ask_chat(model, conversation.messages)
            if reply is None:
                continue
            plain: Any = self.ask_plainly(model, conversation.ids).answer
            if fault := difference(conversation, plain, reply.answer, reply.tokens):
                raise self.wrong(fault, model, "give the server the model's own chat template (or set `chat = false`)")
            compared += bool(plain)
        return {**judged.figures, "conversations": compared}

    def wrong(self, fault: str, model: str, remedy: str = "set the server up for this model") -> Permanent:
        """The error of answers that are not the fine-tuned model's."""
        return Permanent(
            FaultCode.DELIVERY_ANSWERS, f"compare the answers of {model}", fault,
            f"{remedy}; people are served what they were before", path=self.url,
        )  # fmt: skip

    def followed(self, version: str) -> Permanent:
        """The error of a version that is not taken away."""
        cause, remedy = "people are served it", "let them be served another version first"
        return Permanent(FaultCode.DELIVERY_CONFLICT, f"remove {version}", cause, remedy, path=self.url)


def is_wrong(error: CkptdError) -> bool:
    """Whether a server answered, and wrongly."""
    return error.fault.code == FaultCode.DELIVERY_ANSWERS
