"""Dead letters and history over HTTP, inside Azure Functions: every request goes to the ASGI application."""

from __future__ import annotations

import os

import azure.functions as func

from holdfast import Holdfast
from holdfast.api import ApiTokens, create_app

hf = Holdfast("%DB_URL%")
api = create_app(
    hf,
    tokens=ApiTokens.parse(os.environ["HOLDFAST_API_TOKENS"], "the setting HOLDFAST_API_TOKENS"),
    continuation_key=os.environ["HOLDFAST_CONTINUATION_KEY"],  # every instance goes on with the listings of the others
)
app = func.AsgiFunctionApp(app=api, http_auth_level=func.AuthLevel.ANONYMOUS)  # the tokens decide who may do what
