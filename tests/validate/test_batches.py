"""Texts that are decoded as the rows of one batch get what each of them gets alone, whatever the model makes of a batch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.validate.checks import wide
from handlers.validate.checks.live.reference import padded_batch
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.engines.task_profile import LANGUAGE_MODEL
from handlers.validate.workers import causal_drivers, decoding
from handlers.validate.workers.causal_drivers import BatchingDriver, CausalDriver
from handlers.validate.workers.protocol import Ahead, Decoding, Greedy, PaddedBatch, Padding, Request, Teacher
from tests.sampling import some
from tests.validate.bench import Direct
from tests.validate.test_layerwise import ADAPTERS, BASES, adapt

VOCABULARY, END = 23, 3
Cache = list[np.ndarray]


class Toy:
    """A language model whose logits are a function of the tokens before them, their positions, and nothing else."""

    vocabulary: int | None = VOCABULARY
    context_length = None
    end_tokens = (END,)
    batches = True

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        """Shape of each pass."""

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """See `Engine.step`."""
        self.calls.append(input_ids.shape)
        old = cache if cache is not None else (np.zeros((len(input_ids), 0), int), np.zeros((len(input_ids), 0), int))
        ids, positions = np.concatenate([old[0], input_ids], axis=1), np.concatenate([old[1], position_ids], axis=1)
        assert ids.shape == attention_mask.shape
        places = range(ids.shape[1] - input_ids.shape[1], ids.shape[1])
        rows = [[self.logits(self.seen(row, ids, positions, attention_mask, place)) for place in places] for row in range(len(ids))]
        return np.array(rows, np.float32), (ids, positions)

    def seen(self, row: int, ids: np.ndarray, positions: np.ndarray, mask: np.ndarray, place: int) -> list[tuple[int, int]]:
        """(token, position) of all that a row sees at a place."""
        return [(int(ids[row, one]), int(positions[row, one])) for one in range(place + 1) if mask[row, one]]

    def logits(self, seen: Sequence[tuple[int, int]]) -> np.ndarray:
        """(V,)"""
        return np.random.default_rng([7, *(number for pair in seen for number in pair)]).normal(size=VOCABULARY)


class Blind(Toy):
    """It does not honour the mask: a padded row sees its padding."""

    def seen(self, row: int, ids: np.ndarray, positions: np.ndarray, mask: np.ndarray, place: int) -> list[tuple[int, int]]:
        """See `Toy.seen`."""
        return super().seen(row, ids, positions, np.ones_like(mask), place)


class Mixing(Toy):
    """Rows affect each other, as where one scale is computed for all activations."""

    def seen(self, row: int, ids: np.ndarray, positions: np.ndarray, mask: np.ndarray, place: int) -> list[tuple[int, int]]:
        """See `Toy.seen`."""
        return [pair for one in range(len(ids)) for pair in super(Mixing, self).seen(one, ids, positions, mask, place)]


class Crowded(Toy):
    """Rows affect each other where there are more than four."""

    def seen(self, row: int, ids: np.ndarray, positions: np.ndarray, mask: np.ndarray, place: int) -> list[tuple[int, int]]:
        """See `Toy.seen`."""
        pairs = super().seen(row, ids, positions, mask, place)
        return pairs if len(ids) <= 4 else [*pairs, (len(ids), 0)]


class Single(Toy):
    """It takes one row at a time."""

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """See `Engine.step`."""
        if len(input_ids) > 1:
            raise ValueError("one row at a time")
        return super().step(input_ids, attention_mask, position_ids, cache)


class Forgetful(Toy):
    """Its cache loses its third token once there are more than nine."""

    def seen(self, row: int, ids: np.ndarray, positions: np.ndarray, mask: np.ndarray, place: int) -> list[tuple[int, int]]:
        """See `Toy.seen`."""
        pairs = super().seen(row, ids, positions, mask, place)
        return [*pairs[:2], *pairs[3:]] if len(pairs) > 9 and place == ids.shape[1] - 1 else pairs


class Copying(Toy):
    """Its cache can be copied, and is changed by each step."""

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """See `Engine.step`."""
        logits, new = super().step(input_ids, attention_mask, position_ids, None if cache is None else cache[0])
        if cache is None:
            return logits, [new]
        cache[0] = new
        return logits, cache

    def copied(self, cache: Any) -> Any:
        """See `TorchEngine.copied`."""
        return list(cache)


ids = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12)


@st.composite
def asked(draw: st.DrawFn) -> Greedy:
    """A request with a draft that is right up to some place."""
    prompt, tokens = draw(ids), draw(st.integers(1, 40))
    request = Greedy(ids=prompt, tokens=tokens, least=draw(st.integers(0, 8)), stop=draw(st.booleans()), verify=draw(st.booleans()))
    if not draw(st.booleans()):
        return request
    right = CausalDriver(Toy()).greedy(prompt, tokens, least=request.least, stop=request.stop, verify=False).tokens
    kept, token = draw(st.integers(0, len(right))), st.integers(0, VOCABULARY - 1)
    draft = [*right[:kept], *draw(st.lists(token, max_size=10))]
    kept = draw(st.integers(0, len(right)))
    along = [*right[:kept], *draw(st.lists(token, min_size=tokens, max_size=tokens))][:tokens] if draw(st.booleans()) else []
    return request.model_copy(update={"draft": draft, "along": along})


def ask(driver: CausalDriver, request: Greedy) -> Decoding:
    return driver.greedy(request.ids, request.tokens, least=request.least, stop=request.stop, verify=request.verify)


def _without_batch(decoding: Decoding) -> Decoding:
    """What was decoded, without what is told of the batch."""
    return decoding.model_copy(update={"batch_error": None, "batch_rows": None})


def padding_error(driver: CausalDriver, batch: PaddedBatch) -> float | None:
    try:
        return driver.padding(batch.prompts, batch.continuations, None, "left")
    except ValueError:
        return None


@pytest.mark.parametrize("kind", [Toy, Blind, Mixing, Single, Forgetful, Copying])
@settings(max_examples=25, deadline=None)
@given(requests=st.lists(asked(), min_size=1, max_size=6), rows=st.lists(ids, max_size=3), size=st.sampled_from([100, 3000, 1 << 27]))
def test_what_was_decoded_in_a_batch_is_what_each_text_gets_alone(
    kind: type[Toy], requests: list[Greedy], rows: list[list[int]], size: int
) -> None:
    if kind is Forgetful:  # several tokens in a step do not meet its fault
        requests = [one.model_copy(update={"draft": [], "along": []}) for one in requests]
    driver, alone = BatchingDriver(kind()), CausalDriver(kind())
    batch = PaddedBatch(prompts=[*rows, requests[0].ids], continuations=[[5, 6], [1, 1], [9, 9], [2, 2]][-len(rows) - 1 :])
    driver.expect(Padding(batch=batch))
    for request in requests:
        driver.expect(request)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(causal_drivers, "BATCH_BYTES", size)
        assert not driver.advance()
    for request in requests:
        assert _without_batch(ask(driver, request)) == ask(alone, request)
        np.testing.assert_array_equal(driver.rows(request.ids, [4, 5], None), alone.rows(request.ids, [4, 5], None))
    found, wanted = (padding_error(one, batch) for one in (driver, alone))
    assert found == wanted


@settings(max_examples=30, deadline=None)
@given(requests=st.lists(asked(), min_size=2, max_size=6))
def test_a_fault_of_steps_of_one_token_is_found_whatever_is_foreseen(requests: list[Greedy]) -> None:
    prompts = [[5, 6, 7, 8, 9], *(one.ids for one in requests)]
    tokens = [ask(CausalDriver(Toy()), Greedy(ids=ids, tokens=12)).tokens for ids in prompts]
    driver = BatchingDriver(Forgetful())
    requests = [Greedy(ids=ids, tokens=12, verify=True, draft=own, along=own) for ids, own in zip(prompts, tokens, strict=True)]
    for request in requests:
        driver.expect(request)
    driver.advance()
    assert max(ask(driver, request).cache_error or 0.0 for request in requests) > 0.5


@settings(max_examples=30, deadline=None)
@given(prompts=st.lists(ids, min_size=2, max_size=6, unique_by=tuple))
def test_the_longest_text_and_no_other_is_decoded_as_a_deployment_does(prompts: list[list[int]]) -> None:
    engine = Toy()
    driver, longest = BatchingDriver(engine), max(prompts, key=len)
    requests = [Greedy(ids=prompt, tokens=9, verify=True) for prompt in prompts]
    for request in requests:
        driver.expect(request)
    driver.advance()
    for request in requests:
        engine.calls.clear()
        ask(driver, request)
        alone = request.ids == longest or len(prompts) == 2  # the other of two is alone in its batch
        assert engine.calls.count((1, 1)) in ((8, 9) if alone else (0, 1))  # the pass over a prompt of one token is of that shape too


@given(st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=3, max_size=3), min_size=1, max_size=6), st.integers(0, 99))
def test_texts_that_are_drawn_side_by_side_are_those_that_are_drawn_alone(prompts: list[list[int]], seed: int) -> None:
    for kind in (Toy, Blind, Single):  # no row is padded, and a model that takes one row alone gets one
        drawn = CausalDriver(kind()).sampled(prompts, 12, seed)
        assert drawn == [CausalDriver(Toy()).sampled([ids], 12, seed + row)[0] for row, ids in enumerate(prompts)]
        assert all(len(text) == 12 or text[-1] == END for text in drawn) and not any(END in text[:-1] for text in drawn)
    together = Toy()
    texts = CausalDriver(together).sampled(prompts, 12, seed)
    assert len(together.calls) == max(map(len, texts)) and {rows for rows, _ in together.calls} == {len(prompts)}


def test_what_is_drawn_is_one_of_the_most_likely_tokens_by_their_probabilities() -> None:
    logits = np.log(np.concatenate([[0.6, 0.3, 0.1], np.full(400, 1e-9)])).astype(np.float32)[::-1]
    drawn = [decoding.drawn(seed)(logits) for seed in range(2000)]
    shares = [drawn.count(len(logits) - 1 - place) / len(drawn) for place in range(3)]
    assert np.allclose(shares, [0.6, 0.3, 0.1], atol=0.05)
    flat = {decoding.drawn(seed)(np.arange(400, dtype=np.float32) / 1e6) for seed in range(2000)}
    assert flat == set(range(400 - decoding.DRAWN_FROM, 400))


@pytest.mark.parametrize(("kind", "limit", "passes"), [(Copying, 1024, 1), (Copying, 23, 3), (Toy, 1024, 3)])
def test_prompts_are_passed_once_where_their_cache_can_be_kept(
    kind: type[Toy], limit: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither text goes on as the tokens that are verified, and each draft is wrong somewhere behind the place where it does not."""
    monkeypatch.setattr(decoding, "COPIED_TOKENS", limit)
    monkeypatch.setattr(Toy, "same_kernels", True, raising=False)
    prompts, driver = [list(range(12)), list(range(4, 16))], BatchingDriver(kind())
    tokens = [ask(CausalDriver(Toy()), Greedy(ids=ids, tokens=9)).tokens for ids in prompts]
    requests = [
        Greedy(ids=ids, tokens=9, verify=True, draft=[*own[:7], 22 - own[7], *own[8:]], along=[*own[:4], 22 - own[4], *own[5:]])
        for ids, own in zip(prompts, tokens, strict=True)
    ]
    for request in requests:
        driver.expect(request)
    driver.advance()
    assert sum(shape[1] == 12 for shape in driver._batching.calls) == passes
    assert [ask(driver, request).tokens for request in requests] == tokens


@pytest.mark.parametrize(("engine", "passes"), [(Copying(), 2), (Toy(), 4)])
def test_the_prompts_pass_is_timed_again_only_where_it_must_be(engine: Toy, passes: int) -> None:
    driver, rows = CausalDriver(engine), [[5, 6, 7], [8, 9, 10]]
    first = driver.timed(rows, 4)
    for number in range(2):
        prefill, decode, tokens = driver.timed(rows, 4, again=True)
        assert tokens == 8 and decode > 0 and (prefill == first[0]) is isinstance(engine, Copying), number
    driver.timed([[1, 2, 3]], 4, again=True)
    assert sum(shape[1] == 3 for shape in engine.calls) == passes and sum(shape == (2, 1) for shape in engine.calls) == 12


def test_a_batch_without_padding_says_nothing_about_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [[4, 5, 6, 7, 8], [8, 7, 6, 5, 4], [1, 2, 5], [5, 2, 1]]
    monkeypatch.setattr(causal_drivers, "BATCH_BYTES", 2 * 5 * 4 * VOCABULARY)  # two rows of one length each time
    driver, batch = BatchingDriver(Blind()), PaddedBatch(prompts=prompts, continuations=[[]] * 4)
    driver.expect(Padding(batch=batch))
    for prompt in prompts:
        driver.expect(Greedy(ids=prompt, tokens=4))
    driver.advance()
    assert (padding_error(driver, batch) or 0.0) > 0.5


def test_the_batches_of_long_texts_are_small_and_only_so_many_logits_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causal_drivers, "BATCH_TOKENS", 3 * (5 + 10))
    monkeypatch.setattr(causal_drivers, "HELD_BYTES", 7 * 10 * 4 * VOCABULARY)
    driver = BatchingDriver(Toy())
    requests = [Greedy(ids=[number, 2, 3, 4, 5], tokens=10) for number in range(12)]
    for request in requests:
        driver.expect(request)
    driver.advance()
    assert {shape[0] for shape in driver._batching.calls} <= {2, 3} and len(driver._decoded) == 7
    assert sum(own.logits.nbytes for _, own in driver._decoded.values()) <= causal_drivers.HELD_BYTES
    for request in requests:
        assert ask(driver, request) == ask(CausalDriver(Toy()), request)


@pytest.mark.parametrize("same_kernels", [False, True])
@pytest.mark.parametrize("tokens", range(1, 7))
def test_padding_is_answered_for_however_few_tokens_are_decoded(tokens: int, same_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "same_kernels", same_kernels, raising=False)
    driver, batch = examined(Toy(), [[5, 6, 7, 8, 9], [4, 5], [1, 2, 5, 7, 8, 8, 9, 9]], tokens)
    assert driver.padding(batch.prompts, batch.continuations, None, "left") == 0.0


class Stepless(Toy):
    """A step of one token of one text through the cache is wrong."""

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """See `Engine.step`."""
        logits, new = super().step(input_ids, attention_mask, position_ids, cache)
        return (logits * -1 if cache is not None and input_ids.shape == (1, 1) else logits), new


def test_a_step_of_one_text_is_looked_at_also_where_one_token_is_decoded() -> None:
    driver, batch = examined(Stepless(), [[5, 6, 7, 8, 9], [4, 5], [1, 2, 5, 7, 8, 8, 9, 9]], 1)
    assert driver.padding(batch.prompts, batch.continuations, None, "left") > 0.5


class Crooked(Toy):
    """The third row of each batch is wrong."""

    def step(self, input_ids: np.ndarray, attention_mask: np.ndarray, position_ids: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
        """See `Engine.step`."""
        logits, new = super().step(input_ids, attention_mask, position_ids, cache)
        logits[2:3] *= -1
        return logits, new


@pytest.mark.parametrize("same_kernels", [False, True])
def test_a_wrong_row_of_a_batch_is_no_secret_to_the_check_of_padding(same_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Toy, "same_kernels", same_kernels, raising=False)
    prompts = [[4], [5], [1, 2, 3, 4, 5], [6, 7, 8, 9, 9], list(range(12)), [5, 4, 3, 2, 1]]
    driver, batch = examined(Crooked(), prompts, 8)
    assert driver.padding(batch.prompts, batch.continuations, None, "left") > 0.5


def test_the_text_that_is_decoded_as_a_deployment_does_is_so_however_often_it_is_asked() -> None:
    engine = Toy()
    driver = BatchingDriver(engine)
    requests = [Greedy(ids=[5, 6, 7], tokens=9, verify=True), *([Greedy(ids=[5, 6, 7], tokens=9, verify=True)] * 2)]
    requests += [Greedy(ids=[number, 1], tokens=9, verify=True) for number in range(3)]
    for request in requests:
        driver.expect(request)
    driver.advance()
    engine.calls.clear()
    ask(driver, requests[0])
    assert engine.calls.count((1, 1)) == 8


def examined(engine: Toy, prompts: list[list[int]], tokens: int) -> tuple[BatchingDriver, PaddedBatch]:
    """A driver that was asked about prompts as in a check, and the batch whose padding that check asks about."""
    driver, answer = BatchingDriver(engine), functools.partial(ask, CausalDriver(Toy()))
    requests = [Greedy(ids=ids, tokens=tokens, verify=True, along=answer(Greedy(ids=ids, tokens=tokens)).tokens) for ids in prompts]
    batch = padded_batch([SimpleNamespace(ids=one.ids, tokens=one.along, types=None) for one in requests])  # type: ignore[misc]
    driver.expect(Padding(batch=batch))
    for request in requests:
        driver.expect(request)
    driver.advance()
    for request in requests:
        ask(driver, request)
    return driver, batch


@settings(max_examples=30, deadline=None)
@given(requests=st.lists(asked(), min_size=2, max_size=6))
def test_a_batch_takes_the_steps_of_its_longest_text_and_fewer_where_it_was_foreseen(requests: list[Greedy]) -> None:
    requests = [one.model_copy(update={"verify": False, "stop": False}) for one in requests]
    driver, longest = BatchingDriver(Toy()), max(one.tokens for one in requests)
    for request in requests:
        driver.expect(request.model_copy(update={"draft": []}))
    driver.advance()
    assert len(driver._batching.calls) == longest
    told = [ask(CausalDriver(Toy()), one).tokens for one in requests]
    driver = BatchingDriver(Toy())
    for request, draft in zip(requests, told, strict=True):
        driver.expect(request.model_copy(update={"draft": draft}))
    driver.advance()
    assert len(driver._batching.calls) <= 1 + 2 * decoding.SINGLE + -(-longest // decoding.STRIDE)


PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [100, 101, 102], [7] * 20, [33, 44, 55, 66]]


def answers(engine: str, folder: Path, base: Path | None, scratch: Path, *, drafts: Sequence[Sequence[int]]) -> list[Any]:
    """What an engine says to all kinds of requests, told of them before if there are drafts."""
    worker = Direct(engine, EngineSpec(engine=engine, folder=str(folder), base=str(base) if base else None))
    about = worker.load()
    assert about.together and about.adapted == (base is not None)
    requests: list[Request[Any]] = []
    for number, prompt in enumerate(PROMPTS):
        for bare in [False, True] if about.adapted else [False]:
            draft = list(drafts[number]) if drafts and not bare else []
            requests.append(Greedy(ids=prompt, tokens=24, least=2, stop=True, verify=True, bare=bare, draft=draft))
            requests.append(Teacher(ids=prompt, targets=[3, 4], keep=[0, len(prompt)], out=str(scratch / "rows.npy"), bare=bare))
    requests.append(Padding(batch=PaddedBatch(prompts=PROMPTS, continuations=[[1, 2, 3]] * len(PROMPTS))))
    if drafts:
        while worker.ask(Ahead(requests=[one.line for one in requests])).more:
            pass
    found = []
    for request in requests:
        answer = worker.ask(request.model_copy(update={"draft": []}) if isinstance(request, Greedy) else request)
        found.append(np.load(scratch / "rows.npy") if isinstance(request, Teacher) else answer)
    return found


def assert_near(told: list[Any], untold: list[Any]) -> None:
    """The same tokens and rows; errors of rounding on both sides."""
    unit = float(np.std(next(one for one in untold if isinstance(one, np.ndarray))))
    for mine, theirs in zip(told, untold, strict=True):
        if isinstance(mine, np.ndarray):
            np.testing.assert_array_equal(mine, theirs)
        elif isinstance(mine, Decoding):
            assert mine.tokens == theirs.tokens and len(mine.cache_steps or []) == len(theirs.cache_steps)
            assert max(mine.cache_error or 0.0, theirs.cache_error) < 1e-3 * unit
        else:
            assert max(mine.max_absolute, theirs.max_absolute) < 1e-3 * unit


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return functools.cache(lambda name: BASES[name](tmp_path_factory.mktemp("base") / "model"))


@pytest.mark.parametrize("name", some(BASES, of=2))
@pytest.mark.parametrize("wrong", [False, True])
def test_a_real_model_says_in_a_batch_what_it_says_alone(
    name: str, wrong: bool, bases: Callable[[str], Path], tmp_path: Path, counted: list[int]
) -> None:
    untold = answers("torch", bases(name), None, tmp_path, drafts=[])
    right = [one.tokens for one in untold if isinstance(one, Decoding)]
    counted.clear()
    told = answers("torch", bases(name), None, tmp_path, drafts=[[*row[:9], 1, 2, 3] if wrong else row for row in right])
    assert_near(told, untold)
    assert not counted, "a row of the batch was decoded again alone"


@pytest.mark.parametrize("name", ["lora", "embedding saved"])
def test_a_live_model_says_in_a_batch_what_it_says_alone_with_and_without_its_adapter(
    name: str, bases: Callable[[str], Path], tmp_path: Path, counted: list[int]
) -> None:
    base = bases("qwen3, tied")
    adapter = adapt(base, tmp_path / "adapter", **ADAPTERS[name])
    untold = answers("live", adapter, base, tmp_path, drafts=[])
    counted.clear()
    assert_near(answers("live", adapter, base, tmp_path, drafts=[[]] * len(PROMPTS)), untold)
    assert not counted


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Receives the length of every prompt that is decoded alone."""
    lengths = list[int]()
    greedy = decoding.greedy

    def count(engine: Any, prompt: Sequence[int], *more: Any, **others: Any) -> Any:
        lengths.append(len(prompt))
        return greedy(engine, prompt, *more, **others)

    monkeypatch.setattr(decoding, "greedy", count)
    return lengths


@pytest.mark.parametrize(("kind", "rows", "told"), [(Toy, 6, False), (Crowded, 6, True), (Crowded, 3, False), (Mixing, 3, True)])
def test_a_text_that_gets_something_else_in_a_batch_is_told_and_not_only_decoded_again(kind: type[Toy], rows: int, told: bool) -> None:
    prompts = [list(range(3, 5 + place)) for place in range(rows)]
    driver = BatchingDriver(kind())
    requests = [Greedy(ids=prompt, tokens=6, verify=True) for prompt in [list(range(15)), *prompts]]
    for request in requests:
        driver.expect(request)
    driver.advance()
    found = [ask(driver, request) for request in requests]
    assert [one.tokens for one in found] == [ask(CausalDriver(Toy()), request).tokens for request in requests]
    assert [one.batch_error is not None for one in found] == [False, *[told] * rows], "the longest is run alone"
    assert all(one.batch_rows == rows and (one.cache_error or 0) < 1e-6 for one in found if one.batch_error is not None)


def told_of(engine: Toy, seed: int) -> str | None:
    """The finding about wide batches of a toy."""
    driver = BatchingDriver(engine)
    random = np.random.default_rng(seed)
    samples = [SimpleNamespace(ids=random.integers(0, VOCABULARY, 12).tolist(), tokens=[1, 2, 3], types=None) for _ in range(3)]
    worker = SimpleNamespace(
        ask=lambda request: SimpleNamespace(
            max_absolute=driver.padding(request.batch.prompts, request.batch.continuations, None, request.side)
        )
    )
    reference: Any = SimpleNamespace(samples=samples, subject=LANGUAGE_MODEL, sides=["left"], logit_std=1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide, "seed_of", lambda reference, place=0: seed + place)
        finding = wide.finding(worker, reference, 1e-3)  # type: ignore[arg-type]
    return None if finding is None else finding.reason


def test_a_batch_of_many_rows_is_right_or_told() -> None:
    for seed in range(5):
        assert told_of(Toy(), seed) is None
        for kind in (Crowded, Mixing, Blind):
            assert "rows of a batch affect each other" in (told_of(kind(), seed) or "")


def test_batches_are_of_other_sizes_for_another_checkpoint_and_of_short_texts() -> None:
    samples = [SimpleNamespace(ids=list(range(40)), tokens=[1, 2], types=None)] * 2
    reference: Any = SimpleNamespace(samples=samples, subject=LANGUAGE_MODEL)
    drawn = [wide.batches(reference, seed) for seed in range(20)]
    assert drawn[3] == wide.batches(reference, 3)
    assert {len(mixed.prompts) for mixed, _ in drawn} == set(range(*wide.ROWS))
    for mixed, equal in drawn:
        assert 1 in map(len, mixed.prompts) and len({len(one) for one in mixed.prompts}) > 1
        assert len({len(one) for one in equal.prompts}) == 1 and len(equal.prompts) >= 9
        assert max(map(len, mixed.prompts)) < wide.LENGTH
