"""A plugin for pytest: tests that hold a training to a budget, on a simulated GPU.

    @pytest.mark.memory_budget("2GiB")
    def test_a_step_fits():                    # "cuda" is a simulated GPU in here
        train(build_model().cuda())

    @pytest.mark.time_budget("1ms", gpu="A100-SXM")
    def test_the_model_is_fast(tally):
        tally.summary(build_model(), "8x512:int64")

A test that fails says which lines hold the memory or take the time. Without a marker nothing of
torchtally is loaded.
"""

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from torchtally.errors import TallyError

if TYPE_CHECKING:
    from torchtally.gates import Limit
    from torchtally.ledger import Ledger
    from torchtally.views.model_summary import ModelSummary

T = TypeVar("T")

QUANTITIES = {"memory_budget": "peak", "flops_budget": "flops", "time_budget": "step"}
"""By marker, what it limits."""
EXAMPLES = {"memory_budget": "24GiB", "flops_budget": "6.3T", "time_budget": "200ms"}
FIXTURE = "tally"
PROPERTY = "tally: "
"""Begins the names of a report's properties that are ours, which xdist and JUnit's XML carry."""
WIDTH = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "the GPU that tests with a budget simulate, by a name of `tally gpus`"
    parser.getgroup("tally").addoption("--tally-gpu", metavar="NAME", help=text)
    parser.addini("tally_gpu", text, default="")


def pytest_configure(config: pytest.Config) -> None:
    for name, quantity in QUANTITIES.items():
        config.addinivalue_line(
            "markers",
            f'{name}(amount, gpu=None): fail where the {quantity} is above "{EXAMPLES[name]}"; the '
            "test runs on a simulated GPU, or accounts something by the fixture `tally`",
        )


@dataclass(frozen=True, slots=True)
class TestBudget:
    """The markers of one test."""

    __test__ = False
    gpu: str
    limits: "tuple[Limit, ...]"


def budget_of(item: pytest.Item) -> TestBudget | None:
    """None for a test without a marker of ours. A marker that says nothing fails the test."""
    marks = [mark for name in QUANTITIES for mark in item.iter_markers(name)]
    if not marks:
        return None
    from torchtally.gates import parse_limits

    gpus = {str(mark.kwargs["gpu"]) for mark in marks if mark.kwargs.get("gpu")}
    if len(gpus) > 1:
        pytest.fail(
            f"budgets of one test name several GPUs: {', '.join(sorted(gpus))}", pytrace=False
        )
    closest: dict[str, str] = {}
    for mark in marks:
        if len(mark.args) != 1 or not set(mark.kwargs) <= {"gpu"}:
            pytest.fail(
                f'expected @pytest.mark.{mark.name}("{EXAMPLES[mark.name]}")', pytrace=False
            )
        closest.setdefault(mark.name, f"{QUANTITIES[mark.name]} <= {mark.args[0]}")
    gpu = gpu_of(item.config, next(iter(gpus), None))
    return TestBudget(gpu, tuple(said_plainly(lambda: parse_limits(closest.values()))))


def said_plainly(make: Callable[[], T]) -> T:
    """What the function makes; an error of ours fails the test by its message alone."""
    try:
        return make()
    except TallyError as error:
        message = str(error)
    pytest.fail(message, pytrace=False)


def gpu_of(config: pytest.Config, named: str | None) -> str:
    """The marker's, the command line's, the configuration's, TALLY_GPU's, or the default one."""
    import os

    from torchtally.chips import DEFAULT

    places = (named, config.getoption("--tally-gpu"), config.getini("tally_gpu"))
    return str(next(filter(None, (*places, os.environ.get("TALLY_GPU", "").strip())), DEFAULT))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Every marker is looked at before the test runs, and none is without effect."""
    if budget_of(item) is not None and not _is_function(item):
        pytest.fail(
            "budgets apply to test functions, not to methods of unittest.TestCase", pytrace=False
        )


def _is_function(item: pytest.Item) -> bool:
    from _pytest.unittest import TestCaseFunction

    return isinstance(item, pytest.Function) and not isinstance(item, TestCaseFunction)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Run a test with a budget on a simulated GPU, unless it accounts something by itself."""
    budget = budget_of(pyfuncitem)
    if budget is None:
        return (yield)
    if FIXTURE in pyfuncitem.fixturenames:
        result = yield
        fixture = pyfuncitem.funcargs[FIXTURE]
        assert isinstance(fixture, TallyFixture)
        if not fixture.ledgers:
            pytest.fail(
                "the budget limits nothing: the test called neither tally.run nor tally.summary",
                pytrace=False,
            )
        for ledger in fixture.ledgers:
            hold(ledger, budget.limits, fixture.add_property)
        return result
    from torchtally.ledger import account
    from torchtally.runs.tracing_context import tracing
    from torchtally.timing.targets import roofline
    from torchtally.trace import Ending

    target = said_plainly(lambda: roofline(budget.gpu))
    with tracing(pyfuncitem.name, target) as session:
        result = yield
        trace = session.trace(Ending("exit"))
    hold(account(trace, roofline=target), budget.limits, adder(pyfuncitem))
    return result


def hold(
    ledger: "Ledger", limits: "tuple[Limit, ...]", add_property: Callable[[str, str], None]
) -> None:
    """Fail the test where one of the limits does not hold, with the lines behind it."""
    from torchtally.gates import check
    from torchtally.report.gates import findings_text, sentence

    findings = check(ledger, limits)
    for finding in findings:
        add_property(f"{PROPERTY}{finding.limit.name}", f"{ledger.trace.chip}: {sentence(finding)}")
    broken = [finding for finding in findings if not finding.holds]
    if broken:
        pytest.fail(
            f"on {ledger.trace.chip}, per {ledger.period}:\n{findings_text(broken, width=WIDTH)}",
            pytrace=False,
        )


def adder(item: pytest.Item) -> Callable[[str, str], None]:
    def add(name: str, text: str) -> None:
        item.user_properties.append((name, text))

    return add


@dataclass(slots=True)
class TallyFixture:
    """What the fixture `tally` is: accounts of functions and models, and limits on them."""

    gpu: str
    add_property: Callable[[str, str], None]
    ledgers: "list[Ledger]" = field(default_factory=list)
    """All that the test accounted; the markers' budgets are of each of them."""

    def run(
        self, function: Callable[[], object], *, gpu: str | None = None, steps: int | None = None
    ) -> "Ledger":
        """The account of a function that trains on "cuda", as of `torchtally.run`."""
        from torchtally.ledger import account
        from torchtally.runs.function import run
        from torchtally.timing.targets import roofline

        name = gpu or self.gpu
        ledger = account(run(function, gpu=name, steps=steps), roofline=roofline(name))
        self.ledgers.append(ledger)
        return ledger

    def summary(self, model: Any, *inputs: Any, **options: Any) -> "ModelSummary":
        """Summary of a model, as of `torchtally.summary`."""
        from torchtally.models.summary import summary

        model_summary = summary(model, *inputs, **{"gpu": self.gpu, **options})
        self.ledgers.append(model_summary.ledger)
        return model_summary

    def check(self, account: "Ledger | ModelSummary", *limits: str) -> None:
        """Fail the test unless these hold: tally.check(ledger, "peak < 2GiB", "mfu > 40%")."""
        from torchtally.gates import parse_limits
        from torchtally.ledger import Ledger

        ledger = account if isinstance(account, Ledger) else account.ledger
        hold(ledger, tuple(said_plainly(lambda: parse_limits(limits))), self.add_property)


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> TallyFixture:
    """Accounts of functions and models on a simulated GPU, and limits on them."""
    item = request.node
    budget = budget_of(item)
    gpu = gpu_of(request.config, None) if budget is None else budget.gpu
    return TallyFixture(gpu, adder(item))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line for each limit of each test, also of tests that other processes ran."""
    lines = list(_lines(terminalreporter))
    if lines:
        terminalreporter.section("tally budgets")
        for line in lines:
            terminalreporter.write_line(line)


def _lines(terminalreporter: pytest.TerminalReporter) -> Iterator[str]:
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            if report.when == "call":
                for name, text in report.user_properties:
                    if name.startswith(PROPERTY):
                        yield f"{report.nodeid}: {text}"
