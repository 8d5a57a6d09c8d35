"""An engine in Azure Functions: a queue message becomes a durable orchestration, and its end becomes history."""

from __future__ import annotations

import os
from collections.abc import Generator
from datetime import timedelta
from typing import Any

import azure.durable_functions as df
import azure.functions as func

from holdfast import AzureStorage, Holdfast
from holdfast.durable import DurableFunctions, RetryPolicy, when_all

MAX_DEQUEUE_COUNT = 20  # as in host.json


def storage_account() -> AzureStorage:
    """Return the account of the host: by its managed identity where its name is set, else by its connection string."""
    name = os.environ.get("AzureWebJobsStorage__accountName")  # noqa: SIM112 - its name
    if name is None:
        connection_string = os.environ["AzureWebJobsStorage"]  # noqa: SIM112 - its name
        return AzureStorage.from_connection_string(connection_string, max_dequeue_count=MAX_DEQUEUE_COUNT)
    from azure.identity import DefaultAzureCredential

    return AzureStorage.from_account(name, credential=DefaultAzureCredential(), max_dequeue_count=MAX_DEQUEUE_COUNT)


storage = storage_account()
durable = DurableFunctions()  # with DurableTasks(…) the engine below runs on a task hub of one's own instead
hf = Holdfast("%DB_URL%", engine_queues=storage, engine_tables=storage, durable=durable)
app = df.DFApp()


@durable.activity
def issue(ctx: Any, host: str) -> dict[str, str]:
    """Get a certificate. It may be called again for the same host: issuing is idempotent."""
    return {"host": host, "certificate": f"certificate of {host}"}


@durable.activity
def install(ctx: Any, issued: dict[str, str]) -> str:
    """Put a certificate where it is used."""
    return issued["host"]


@hf.engine("tls", max_retry_attempts=5, timeout_seconds=240)
def renew(ctx: Any, given: dict[str, Any]) -> Generator[Any, Any, dict[str, Any]]:
    """Renew the certificates of all hosts of a message, beside each other."""
    again = RetryPolicy(first_retry_interval=timedelta(seconds=5), max_number_of_attempts=3)
    calls = [ctx.call_activity(issue, input=host, retry_policy=again) for host in given["payload"]["hosts"]]
    issued = yield when_all(ctx, calls)
    installed = yield when_all(ctx, [ctx.call_activity(install, input=one) for one in issued])
    return {"installed": installed}


@app.queue_trigger(arg_name="msg", queue_name="tls-queue", connection="AzureWebJobsStorage")
@app.durable_client_input(client_name="client")
async def tls_queue(msg: func.QueueMessage, client: df.DurableOrchestrationClient) -> None:
    """Take a message through the engine's steps. What raises comes again; the host deletes the rest."""
    with durable.invocation(client):
        await hf.engines.handle_async("tls", msg)


@app.timer_trigger(arg_name="timer", schedule="0 */5 * * * *")
def keep_up(timer: func.TimerRequest) -> None:
    """Do what `holdfast run` does beside the messages. Each may be done by several at once, and again."""
    hf.engines.drain_poison("tls")  # what the host gave up on becomes dead letters
    hf.engines.retries.sweep()  # finishes retries of dead letters whose process died
    hf.seal_audit()  # seals what people have changed by command or API
    hf.prune()  # forgets what is past its retention


durable.register(app)  # every orchestrator and activity becomes a function of the app
