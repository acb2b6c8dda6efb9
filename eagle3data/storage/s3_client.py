"""How S3 is reached: what an s3fs file system was given, given to botocore and to obstore.

botocore writes (it sends a part's CRC32C and the condition of a multipart's end) and asks about
objects; obstore reads, at half of s3fs's cost in processor time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError, SSLError

from eagle3data.storage import retry

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig

CONNECTIONS = 64
CONNECT_SECONDS, READ_SECONDS = 10, 60
ERRORS: tuple[type[Exception], ...] = (BotoCoreError, ClientError)

_CREDENTIALS_SECONDS = 300
_OBSTORE_KNOWS = {
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "endpoint_url",
    "region_name",
    "use_ssl",
}
_MAY_PASS = {
    "BadDigest",
    "ConditionalRequestConflict",
    "IncompleteBody",
    "OperationAborted",
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "XAmzContentChecksumMismatch",
}


def make_session(fs: Any) -> Any:
    """A botocore session with the profile and the keys that a file system was given."""
    session = botocore.session.Session(**fs.kwargs)
    key = fs.key or fs.client_kwargs.get("aws_access_key_id")
    if key:
        secret = fs.secret or fs.client_kwargs.get("aws_secret_access_key")
        session.set_credentials(key, secret, fs.token or fs.client_kwargs.get("aws_session_token"))
    return session


def make_client(fs: Any, session: Any) -> Any:
    """A botocore S3 client with a file system's options; it leaves retries to the caller."""
    options = {"use_ssl": fs.use_ssl, **fs.client_kwargs}
    if fs.endpoint_url:
        options["endpoint_url"] = fs.endpoint_url
    settings = {
        "connect_timeout": CONNECT_SECONDS,
        "read_timeout": READ_SECONDS,
        "max_pool_connections": CONNECTIONS,
        **fs.config_kwargs,
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    if fs.anon:
        settings["signature_version"] = UNSIGNED
    return session.create_client("s3", config=Config(**settings), **options)


def make_reader(fs: Any, bucket: str, session: Any, client: Any) -> Any:
    """An obstore store that reads a bucket, or None where obstore can't stand in for s3fs.

    That is: it is not installed, there are no credentials, or an option was given that it may
    not know.
    """
    try:
        from obstore.store import S3Store
    except ImportError:
        return None
    credentials = None if fs.anon else session.get_credentials()
    if not (fs.anon or credentials) or _needs_s3fs(fs, session):
        return None
    endpoint = client.meta.endpoint_url
    on_aws = endpoint.endswith(".amazonaws.com")
    pauses: BackoffConfig = {
        "init_backoff": timedelta(seconds=retry.FIRST_PAUSE),
        "max_backoff": timedelta(seconds=retry.LONGEST_PAUSE),
    }
    return S3Store(
        bucket,
        endpoint=None if on_aws else endpoint,
        region=_bucket_region(client, bucket) if on_aws else client.meta.region_name,
        skip_signature=bool(fs.anon),
        credential_provider=None if fs.anon else _provider(credentials),
        client_options=_transport(endpoint, session),
        retry_config={"max_retries": retry.ATTEMPTS - 1, "backoff": pauses},
    )


def _transport(endpoint: str, session: Any) -> ClientConfig:
    """Time limits, and the certificates that botocore was told to trust."""
    options: ClientConfig = {
        "allow_http": endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=READ_SECONDS),
        "timeout": timedelta(seconds=10 * READ_SECONDS),
    }
    bundle = session.get_config_variable("ca_bundle")
    if bundle and endpoint.startswith("https://"):
        options["root_certificate"] = Path(bundle).read_bytes()
    return options


def _needs_s3fs(fs: Any, session: Any) -> bool:
    """Whether an option was given that obstore may not know: who pays, a kind of endpoint."""
    bundle = session.get_config_variable("ca_bundle")
    return bool(
        set(fs.client_kwargs) - _OBSTORE_KNOWS
        or set(fs.config_kwargs) - {"max_pool_connections", "connect_timeout", "read_timeout"}
        or fs.req_kw
        or session.get_config_variable("use_fips_endpoint")
        or session.get_config_variable("use_dualstack_endpoint")
        or session.get_scoped_config().get("s3")
        or (bundle and not Path(bundle).is_file())
    )


def _provider(credentials: Any) -> Any:
    """Credentials as obstore asks for them; botocore renews those that expire."""

    def current() -> dict[str, Any]:
        keys = credentials.get_frozen_credentials()
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
            "expires_at": datetime.now(UTC) + timedelta(seconds=_CREDENTIALS_SECONDS),
        }

    return current


def _bucket_region(client: Any, bucket: str) -> str | None:
    """Where AWS keeps a bucket: obstore, unlike botocore, doesn't follow it to another region."""
    try:
        answer = client.head_bucket(Bucket=bucket)
    except ClientError as error:
        answer = error.response
    headers = answer["ResponseMetadata"].get("HTTPHeaders", {})
    region: str | None = headers.get("x-amz-bucket-region", client.meta.region_name)
    return region


def error_code(error: Exception) -> str:
    """S3's name of an error; empty where there was no answer."""
    return str(error.response["Error"].get("Code", "")) if isinstance(error, ClientError) else ""


def error_status(error: Exception) -> int:
    """The HTTP status of an error; 0 where there was no answer."""
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_transient(error: Exception) -> bool:
    """Whether the same request may work in a moment."""
    if isinstance(error, ClientError):
        status = error_status(error)
        return status in {429, 500, 502, 503, 504} or error_code(error) in _MAY_PASS
    return isinstance(error, HTTPClientError) and not isinstance(error, SSLError)
