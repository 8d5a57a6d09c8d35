"""Two ways to run a function app: the real worker library in a process of its own, or the built functions right here.

Both take the same calls and tell the same outcomes, so one set of tests runs on either.
"""

import asyncio
import base64
import importlib.util
import inspect
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Protocol, Self

import azure.functions as func
from azure.functions.meta import Datum

from holdfast import EngineProvider
from tests.components import functions
from tests.components.processes import REPOSITORY, start_leashed, wait_until
from tests.components.workspace import private_directory
from tests.functions.calls import Call, Outcome, Response

MARK = "@functions "
PATIENCE_SECONDS = 60.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Indexed:
    """A function as the worker sees it."""

    bindings: list[dict[str, Any]]
    parameters: list[str]
    is_async: bool


class IndexingFailedError(Exception):
    """The worker could not load the function app; the message is what it tells the host."""


class Running(Protocol):
    """An invocation that was started."""

    def is_done(self) -> bool: ...

    def outcome(self) -> Outcome: ...


class Host(Protocol):
    """One instance of a function app."""

    functions: dict[str, Indexed]

    def start(self, function: str, call: Call) -> Running: ...

    def close(self) -> None: ...


def invoke(host: Host, function: str, call: Call) -> Outcome:
    """Fire a function and wait for its end."""
    return host.start(function, call).outcome()


class RuntimeHost:
    """The app inside `azure-functions-runtime`, in a process of its own under Python 3.13."""

    def __init__(self, app: Path, settings: Mapping[str, str]) -> None:
        self._log = private_directory("functions") / "output"
        path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "src")])
        self._process = start_leashed(
            [str(functions.PYTHON), "-u", "-W", "error", "-m", "tests.functions.runtime_worker", str(app)],
            self._log,
            environment={**settings, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
        )
        try:
            told = self.wait_for_answer("ready")
            if not told["ready"]:
                raise IndexingFailedError(told["error"])
        except BaseException:
            self.close()
            raise
        self.functions = {
            name: Indexed(item["bindings"], item["parameters"], item["is_async"])
            for name, item in told["functions"].items()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def output(self) -> str:
        return self._log.read_text()

    def start(self, function: str, call: Call) -> "_RunningInProcess":
        call_id = f"call-{next(_numbers)}"
        line = {
            "id": call_id,
            "function": function,
            "parameter": call.parameter,
            "data": call.data,
            "metadata": call.metadata,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line) + "\n")
        self._process.stdin.flush()
        return _RunningInProcess(self, call_id)

    def answers(self) -> list[dict[str, Any]]:
        lines = self.output.splitlines(keepends=True)
        whole = [line for line in lines if line.startswith(MARK) and line.endswith("\n")]
        return [json.loads(line.removeprefix(MARK)) for line in whole]

    def wait_for_answer(self, key: str, value: str | None = None) -> dict[str, Any]:
        def found() -> dict[str, Any] | None:
            ended = self._process.poll() is not None
            answer = next((one for one in self.answers() if key in one and value in (None, one[key])), None)
            if answer is None and ended:
                raise AssertionError(f"the Functions worker ended:\n{self.output}")
            return answer

        answer = wait_until(found, f"{key} {value or ''} from the Functions worker", PATIENCE_SECONDS)
        assert answer is not None
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True, slots=True)
class _RunningInProcess:
    host: RuntimeHost
    call_id: str

    def is_done(self) -> bool:
        return any(answer.get("id") == self.call_id for answer in self.host.answers())

    def outcome(self) -> Outcome:
        answer = self.host.wait_for_answer("id", self.call_id)
        value = answer["value"]
        return Outcome(answer["succeeded"], answer["error"], None if value is None else _response(value["http"]))


def _response(told: Mapping[str, Any]) -> Response:
    headers = {name.lower(): value for name, value in told["headers"].items()}
    return Response(int(told["status_code"]), base64.b64decode(told["body"]["bytes"]).decode(), headers)


class BuiltHost:
    """The app's built functions, called here as a worker would: sync ones on threads, async ones on a loop."""

    def __init__(self, app: Path) -> None:
        self._module = _imported(app / "function_app.py")
        [found] = [value for value in vars(self._module).values() if isinstance(value, func.FunctionApp)]
        self._functions = {str(function.get_function_name()): function for function in found.get_functions()}
        self.functions = {
            name: Indexed(
                [json.loads(raw) for raw in function.get_raw_bindings()],
                sorted(inspect.signature(function.get_user_function()).parameters),
                inspect.iscoroutinefunction(function.get_user_function()),
            )
            for name, function in self._functions.items()
        }
        self._threads = ThreadPoolExecutor(thread_name_prefix="functions")

    def start(self, function: str, call: Call) -> "_RunningHere":
        handler = self._functions[function].get_user_function()
        return _RunningHere(self._threads.submit(_run, handler, call))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._threads.shutdown()
        for value in vars(self._module).values():
            if isinstance(value, EngineProvider):
                value.dispose_all()


@dataclass(frozen=True, slots=True)
class _RunningHere:
    future: Future[Outcome]

    def is_done(self) -> bool:
        return self.future.done()

    def outcome(self) -> Outcome:
        return self.future.result(PATIENCE_SECONDS)


def _imported(path: Path) -> ModuleType:
    """Import a module under a name of its own: two instances of an app share nothing."""
    name = f"function_app_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _run(handler: Any, call: Call) -> Outcome:
    """Bind, call and pack, with the converters of the azure-functions package that the worker uses too."""
    registry = func.get_binding_registry()  # type: ignore[no-untyped-call]  # the package has no types for it
    metadata = {name: _datum(value) for name, value in call.metadata.items()}
    argument = registry.get(call.binding).decode(_datum(call.data), trigger_metadata=metadata)
    try:
        result = handler(**{call.parameter: argument})
        if inspect.iscoroutine(result):
            result = asyncio.run(_awaited(result))
    except Exception as error:
        return Outcome(False, f"{type(error).__name__}: {error}")
    if call.binding != "httpTrigger":
        assert result is None
        return Outcome(True, None)
    answer = registry.get("http").encode(result, expected_type=None).value
    body = base64.b64encode(answer["body"].value).decode()
    headers = {name: item.value for name, item in answer["headers"].items()}
    told = {"status_code": answer["status_code"].value, "body": {"bytes": body}, "headers": headers}
    return Outcome(True, None, _response(told))


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _datum(value: Mapping[str, Any]) -> Any:
    [(kind, content)] = value.items()
    if kind != "http":
        return Datum(content, kind)
    request: dict[str, Any] = {name: Datum(content[name], "string") for name in ("method", "url")}
    for name in ("headers", "query", "params"):
        request[name] = {key: Datum(text, "string") for key, text in content[name].items()}
    return Datum({**request, "body": Datum(content["body"].encode(), "bytes")}, "http")
