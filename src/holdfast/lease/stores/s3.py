"""State documents as objects in an S3 bucket, or in a service that honours S3's conditional writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.core.errors import ConfigurationError
from holdfast.lease.documents import ETag, Snapshot, Written

from ...core.extras import needed
from ._http import SKEW_MARGIN_SECONDS, Call, Failure, Place, http_date, translated
from ._names import checked_document_name

with needed("S3DocumentStore needs boto3", "s3"):
    import boto3
    from botocore.config import Config
    from botocore.exceptions import (
        BotoCoreError,
        ClientError,
        ConnectTimeoutError,
        CredentialRetrievalError,
        EndpointConnectionError,
        NoCredentialsError,
        ParamValidationError,
        PartialCredentialsError,
        ProxyConnectionError,
    )
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

_TIMEOUT_SECONDS = 10.0


class S3DocumentStore:
    """One object per document, under ``prefix`` and the document's own name.

    Conditions are ``If-None-Match: *`` and ``If-Match`` on puts and ``If-Match`` on deletes; the service must
    honour them (Amazon S3 does). If the process dies during a write, S3 has either the old object or the new
    one. An S3 etag is a hash of the content, so it differs between two writes only if the content does:
    Holdfast raises a ``revision`` in every document it writes.

    Every call raises ``Unavailable`` when the service surely did nothing, and ``StateStoreError`` when the
    bucket is missing or access to it is refused; a write raises ``Ambiguous`` when its answer was lost.

    Args:
        client: a boto3 S3 client built with ``Config(retries={"total_max_attempts": 1})``; ``from_bucket``
            builds one. A client that retries is refused, because a retried conditional write would meet its
            own first attempt and report a conflict that is none.
        bucket: the bucket, which must exist.
        prefix: what every key begins with, for example ``holdfast/``.

    Raises:
        ConfigurationError: the client retries.
    """

    skew_margin_seconds: float | None = SKEW_MARGIN_SECONDS

    def __init__(self, client: Any, bucket: str, prefix: str = "") -> None:
        _refuse_retries(client)
        self._client = client
        self._bucket = bucket
        self._prefix = prefix
        self._place = Place(
            f"S3 bucket '{bucket}'",
            "Check the credentials, and that they allow s3:GetObject, s3:PutObject, s3:DeleteObject and "
            "s3:ListBucket there (without s3:ListBucket a missing object looks like a refusal).",
        )

    @classmethod
    def from_bucket(cls, bucket: str, prefix: str = "", **client_kwargs: Any) -> S3DocumentStore:
        """Return a store with a client of its own: one attempt per call, time-outs of 10 seconds.

        ``client_kwargs`` go to ``boto3.client("s3", …)``; a ``config`` in them is kept, except its retries.
        """
        once = Config(
            retries={"total_max_attempts": 1}, connect_timeout=_TIMEOUT_SECONDS, read_timeout=_TIMEOUT_SECONDS
        )
        given = client_kwargs.pop("config", None)
        config = once if given is None else given.merge(Config(retries={"total_max_attempts": 1}))
        return cls(boto3.client("s3", config=config, **client_kwargs), bucket, prefix)

    def read(self, name: str) -> Snapshot | None:
        """Return the object with the time of the answer, or None when there is none."""
        key = self._key(name)
        with translated(Call(self._place, "read", name), _failure_of):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=key)
                return Snapshot(answer["Body"].read(), ETag(answer["ETag"]), _date(answer))
            except ClientError as error:
                if error.response["Error"]["Code"] == "NoSuchKey":
                    return None
                raise

    def create(self, name: str, content: bytes) -> Written:
        """Write an object that must not exist yet.

        Raises:
            Conflict: it exists; nothing was changed.
        """
        return self._put(Call(self._place, "create", name), content, {"IfNoneMatch": "*"})

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Overwrite the object read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
        """
        return self._put(Call(self._place, "replace", name), content, {"IfMatch": str(if_match)})

    def delete(self, name: str, if_match: ETag) -> None:
        """Delete the object read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
        """
        key = self._key(name)
        with translated(Call(self._place, "delete", name), _failure_of):
            self._client.delete_object(Bucket=self._bucket, Key=key, IfMatch=str(if_match))

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with ``prefix``, in ascending order, as they were at the call."""
        with translated(Call(self._place, "list", prefix), _failure_of):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix + prefix
            )
            keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
            return iter(sorted(key.removeprefix(self._prefix) for key in keys))

    def close(self) -> None:
        """Close the client's connections; the store cannot be used after that."""
        self._client.close()

    def _key(self, name: str) -> str:
        return self._prefix + checked_document_name(name)

    def _put(self, call: Call, content: bytes, condition: dict[str, str]) -> Written:
        key = self._key(call.name)
        with translated(call, _failure_of):
            answer = self._client.put_object(
                Bucket=self._bucket, Key=key, Body=content, ContentType="application/json", **condition
            )
            return Written(ETag(answer["ETag"]), _date(answer))


def _refuse_retries(client: Any) -> None:
    attempts = (client.meta.config.retries or {}).get("total_max_attempts")
    if attempts != 1:
        raise ConfigurationError(
            f"This S3 client tries each call up to {attempts or 'several'} times, and a retried conditional "
            "write reports a conflict with itself. Build it with "
            "botocore.config.Config(retries={'total_max_attempts': 1}), or use S3DocumentStore.from_bucket."
        )


def _date(answer: dict[str, Any]) -> Any:
    return http_date(answer["ResponseMetadata"]["HTTPHeaders"].get("date"))


def _failure_of(error: Exception) -> Failure | None:
    reason = type(error).__name__
    if isinstance(error, ClientError):
        code = str(error.response["Error"].get("Code", ""))
        return Failure(reason, status=error.response["ResponseMetadata"]["HTTPStatusCode"], code=code)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)):
        return Failure(reason, status=401, code=reason)
    if isinstance(error, ParamValidationError):
        return Failure("the S3 client does not know these parameters", status=400, code=reason)
    if isinstance(error, (EndpointConnectionError, ConnectTimeoutError, ProxyConnectionError)):
        return Failure(f"no connection to the service ({reason})", did_nothing=True)
    if isinstance(error, (BotoCoreError, ResponseParserError, HTTPError, OSError)):
        return Failure(f"the connection failed before the whole answer arrived ({reason})")
    return None
