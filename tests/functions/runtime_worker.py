"""The process around azure-functions-runtime: JSON lines in, JSON lines out. Runs under Python 3.13, not under pytest.

usage: python -m tests.functions.runtime_worker FUNCTION_APP_DIRECTORY

The first line it writes tells how indexing went. Each line it reads is one invocation, and invocations overlap as they
do in Azure; each is answered by a line with its id.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import os
import sys
from typing import Any

import azure_functions_runtime as runtime
from azure_functions_runtime.handle_event import _functions as registry

from tests.functions import messages
from tests.functions.messages import StreamingMessage, TypedData, WorkerRequest

MARK = "@functions "


def say(answer: dict[str, Any]) -> None:
    sys.stdout.write(MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()


async def index(directory: str) -> dict[str, str]:
    """Do what the host does at a cold start, tell about it, and return the ids of the functions by their names."""
    request = StreamingMessage(worker_init_request=messages.WorkerInitRequest(directory))
    started = await runtime.worker_init_request(WorkerRequest(request, {"protos": messages, "host": "127.0.0.1"}))
    if started.result.status != messages.StatusResult.Success:
        say({"ready": False, "error": started.result.exception.message})
        return {}
    metadata = await runtime.functions_metadata_request(WorkerRequest(StreamingMessage()))
    found = metadata.function_metadata_results
    for function in found:
        load = messages.FunctionLoadRequest(function.function_id)
        loaded = await runtime.function_load_request(WorkerRequest(StreamingMessage(function_load_request=load)))
        assert loaded.result.status == messages.StatusResult.Success
    say({"ready": True, "functions": {function.name: described(function) for function in found}})
    return {function.name: function.function_id for function in found}


def described(function: messages.RpcFunctionMetadata) -> dict[str, Any]:
    registered = registry.get_function(function.function_id)
    return {
        "bindings": [json.loads(raw) for raw in function.raw_bindings],
        "parameters": sorted([*registered.input_types, *registered.output_types]),
        "takes_context": registered.requires_context,
        "is_async": registered.is_async,
    }


async def invoke(function_id: str, call: dict[str, Any]) -> None:
    request = messages.InvocationRequest(
        invocation_id=call["id"],
        function_id=function_id,
        input_data=[messages.ParameterBinding(call["parameter"], typed(call["data"]))],
        trigger_metadata={name: typed(value) for name, value in call["metadata"].items()},
    )
    answer = await runtime.invocation_request(WorkerRequest(StreamingMessage(invocation_request=request)))
    error = answer.result.exception
    say(
        {
            "id": call["id"],
            "succeeded": answer.result.status == messages.StatusResult.Success,
            "error": None if error is None else error.message,
            "value": None if answer.return_value is None else shown(answer.return_value),
        }
    )


def typed(value: dict[str, Any]) -> TypedData:
    if "http" in value:
        request = dict(value["http"])
        return TypedData(http=messages.RpcHttp(**{**request, "body": TypedData(bytes=request["body"].encode())}))
    return TypedData(**value)


def shown(value: TypedData) -> dict[str, Any]:
    def plain(item: Any) -> str:
        return base64.b64encode(item).decode() if isinstance(item, bytes) else str(item)

    told: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(value), default=plain))
    return told


async def serve(directory: str) -> None:
    ids = await index(directory)
    if not ids:
        return
    runtime.start_threadpool_executor()
    running = set()
    while line := await asyncio.to_thread(sys.stdin.readline):
        call = json.loads(line)
        task = asyncio.create_task(invoke(ids[call["function"]], call))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    runtime.stop_threadpool_executor()


def main(directory: str) -> None:
    os.chdir(directory)
    sys.path.insert(0, directory)
    asyncio.run(serve(directory))


if __name__ == "__main__":
    main(sys.argv[1])
