"""A vLLM server as an extraction sees it: its HTTP API, and what its connector says of itself."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import urllib3

from eagle3data.extractor.engines.addresses import TCP
from eagle3data.extractor.engines.vllm_client import request_params
from eagle3data.extractor.engines.vllm_settings import INSTANCE, PARAMS, Doorway
from eagle3data.schema.errors import EngineError, InputError

REQUESTS_AT_ONCE = 64
_TIMEOUT_SECONDS = 3600.0
_CONNECT_SECONDS = 10.0
_OK, _UNAUTHORIZED = 200, 401
_REASON_CHARACTERS = 500
_EVERYWHERE = f"{TCP}0.0.0.0:"
_API_KEY = "EAGLE3DATA_API_KEY"
_GREEDY = {
    "max_tokens": 1,
    "temperature": 0.0,
    # A server takes what is not said from the model's generation_config.json.
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


@dataclass(frozen=True, kw_only=True)
class Served:
    """A server that was started with the arguments of `serve-args`.

    Attributes:
        model: name that requests give.
        context: tokens of its longest request; None where it doesn't say.
        doorway: where its connector is met.
        instance: what tells its engine from every other that runs.
        facts: what its connector captures, and of which model.
    """

    model: str
    context: int | None
    doorway: Doorway
    instance: str
    facts: dict[str, Any]


class VllmServer:
    """The HTTP API of a vLLM server; any number of threads may ask."""

    def __init__(self, url: str) -> None:
        """Name a server.

        Args:
            url: of the server, with or without `/v1`; `EAGLE3DATA_API_KEY` is its API key.

        Raises:
            InputError: no http or https URL.
        """
        self.url = url.rstrip("/").removesuffix("/v1")
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise InputError(f"--endpoint {url}: expected a URL like http://127.0.0.1:8000.")
        key = os.environ.get(_API_KEY)
        self._http = urllib3.PoolManager(
            maxsize=REQUESTS_AT_ONCE,
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=_TIMEOUT_SECONDS),
            # What was sent may have been run; only what was not is safe to send again.
            retries=urllib3.Retry(connect=3, read=0, status=0, other=0, backoff_factor=0.2),
            # One that is kept may be closed by the server in the moment in which it is used.
            headers={"Connection": "close"} | ({"Authorization": f"Bearer {key}"} if key else {}),
        )

    def describe(self) -> Served:
        """Ask the server for its model, and the connector for itself.

        Raises:
            EngineError: nobody answers, or the server runs without the connector.
        """
        found = self._answer("GET", "/models")
        try:
            model, context = str(found["data"][0]["id"]), found["data"][0].get("max_model_len")
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(f"{self.url} serves no model that it names; is it vLLM?") from error
        body = {"model": model, "prompt": [1], **_GREEDY, "kv_transfer_params": {PARAMS: {}}}
        facts = _from_connector(self._answer("POST", "/completions", body))
        if "address" not in facts:
            raise EngineError(
                f"the server at {self.url} runs without this package's connector: start it with "
                "the arguments that `eagle3data serve-args` prints."
            )
        return Served(
            model=model,
            context=context,
            doorway=Doorway(address=self._reachable(facts["address"]), key=facts["key"]),
            instance=facts[INSTANCE],
            facts=facts,
        )

    def prefill(
        self, served: Served, input_ids: Sequence[int], name: str, consumer: str
    ) -> tuple[int, float]:
        """Run one sample; its states go to `consumer` under this name.

        Returns:
            The greedy next token after the last one, and its log-probability (nats).

        Raises:
            EngineError: the server did not run it, or another than `served` did.
        """
        body = {
            "model": served.model,
            "prompt": input_ids,
            **_GREEDY,
            "logprobs": 1,
            "return_tokens_as_token_ids": True,
            "kv_transfer_params": request_params(name, consumer),
        }
        answer = self._answer("POST", "/completions", body)
        if _from_connector(answer).get(INSTANCE) != served.instance:
            raise EngineError(
                f"{self.url} is more than one engine: another one answered than the extraction is "
                "connected to. Give --endpoint the address of one engine, not of a balancer before "
                "several, and start `extract` once for each: the runs share the shards."
            )
        try:
            logprobs = answer["choices"][0]["logprobs"]
            token = int(str(logprobs["tokens"][0]).removeprefix("token_id:"))
            return token, float(logprobs["token_logprobs"][0])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"{self.url} answered without a log-probability.") from error

    def close(self) -> None:
        """Drop the connections that are idle."""
        self._http.clear()

    def _reachable(self, address: str) -> str:
        """A connector that listens everywhere is met where the server is."""
        if address.startswith(_EVERYWHERE):
            return f"{TCP}{urlsplit(self.url).hostname}:{address.removeprefix(_EVERYWHERE)}"
        return address

    def _answer(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        url = f"{self.url}/v1{path}"
        try:
            response = self._http.request(method, url, json=body, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            reason = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) else error
            raise EngineError(f"{url} can't be reached: {reason}.") from error
        if response.status == _UNAUTHORIZED:
            raise EngineError(f"{url} wants an API key: set {_API_KEY} to it.")
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.status != _OK or not isinstance(answer, dict):
            said = _reason(answer) or response.data.decode(errors="replace")
            raise EngineError(f"{url} answered {response.status}: {said[:_REASON_CHARACTERS]}")
        return answer


def _from_connector(answer: dict[str, Any]) -> dict[str, Any]:
    """What the connector added to an answer; nothing where there is none."""
    found = (answer.get("kv_transfer_params") or {}).get(PARAMS)
    return found if isinstance(found, dict) else {}


def _reason(answer: Any) -> str:
    """The message of an error as OpenAI's API has it."""
    error = answer.get("error") if isinstance(answer, dict) else None
    return str(error.get("message", "")) if isinstance(error, dict) else ""
