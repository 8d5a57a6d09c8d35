"""Orders over HTTP: look one up, list a customer's, place one."""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict, dataclass
from datetime import datetime

import azure.functions as func

from holdfast import AsyncDbOut, AsyncDbReader, DbBindings, EngineProvider

app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)
db = DbBindings()
engines = EngineProvider()  # one connection pool for everything below, kept between invocations


@dataclass(frozen=True)
class Order:
    """A row of ``orders``."""

    id: uuid.UUID
    customer: str
    item: str
    quantity: int
    placed_at: datetime


def order_key(req: func.HttpRequest) -> dict[str, object]:
    """Return the primary key that the address names; the route lets nothing pass that is not a UUID."""
    return {"id": uuid.UUID(req.route_params["id"])}


@app.route(route="orders/{id:guid}", methods=["GET"])
@db.input("order", url="%DB_URL%", table="orders", pk=order_key, model=Order, engine_provider=engines)
def get_order(req: func.HttpRequest, order: Order | None) -> func.HttpResponse:
    """Return one order; it was read before this function was called."""
    if order is None:
        return answer(404, {"error": f"There is no order {req.route_params['id']}."})
    return answer(200, asdict(order))


@app.route(route="orders", methods=["GET"])
@db.inject_reader("reader", url="%DB_URL%", engine_provider=engines)
async def list_orders(req: func.HttpRequest, reader: AsyncDbReader) -> func.HttpResponse:
    """Return a customer's newest orders. The event loop is free while the database works."""
    customer = req.params.get("customer")
    if not customer:
        return answer(400, {"error": "Name a customer: /api/orders?customer=ada"})
    found = await reader.query(
        "SELECT * FROM orders WHERE customer = :customer ORDER BY placed_at DESC, id LIMIT 100",
        params={"customer": customer},
    )
    return answer(200, found)


@app.route(route="orders", methods=["POST"])
@db.output("orders", url="%DB_URL%", table="orders", engine_provider=engines)
async def place_order(req: func.HttpRequest, orders: AsyncDbOut) -> func.HttpResponse:
    """Place an order and return its id."""
    try:
        wanted = req.get_json()
        row = {"id": uuid.uuid4(), "customer": str(wanted["customer"]), "item": str(wanted["item"])}
        row["quantity"] = int(wanted.get("quantity", 1))
    except (AttributeError, KeyError, TypeError, ValueError):
        return answer(400, {"error": 'Send {"customer": "…", "item": "…", "quantity": 1} as JSON.'})
    await orders.set(row)
    return answer(201, {"id": row["id"]}, location=f"{req.url.rstrip('/')}/{row['id']}")


def answer(status: int, body: object, location: str | None = None) -> func.HttpResponse:
    """Return JSON; what JSON does not know, such as times and UUIDs, becomes text."""
    headers = {"Location": location} if location else None
    return func.HttpResponse(
        json.dumps(body, default=str), status_code=status, headers=headers, mimetype="application/json"
    )
