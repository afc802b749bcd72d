"""Logs Kafka's clients in to Amazon MSK by AWS's IAM: `sasl.mechanism=AWS_MSK_IAM`, as Java's clients call it.

librdkafka lacks this mechanism, but MSK also takes a token through OAUTHBEARER: a signed address, valid for 15 minutes,
which Amazon's library makes without asking AWS. It needs the extra `msk`. AWS_REGION or AWS_DEFAULT_REGION names the
cluster's region. The credentials are those that AWS's tools find.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

from rewindmq.engine.log.contract import LogError

logger = logging.getLogger(__name__)

MECHANISM = "AWS_MSK_IAM"
_NAMES = ("sasl.mechanism", "sasl.mechanisms")


def with_tokens(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a client; one that asks for MSK's mechanism signs its tokens itself.

    Raises LogError where no token can be made."""
    if MECHANISM not in (settings.get(name) for name in _NAMES):
        return dict(settings)
    token_for("")  # librdkafka would report a failure of its first call without the cause
    others = {name: value for name, value in settings.items() if name not in _NAMES}
    return {**others, "sasl.mechanism": "OAUTHBEARER", "oauth_cb": token_for}


def token_for(_config: str) -> tuple[str, float]:
    """Return a new token, and the time in seconds since 1970 at which it expires. librdkafka calls this in time.

    Raises LogError."""
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise LogError(f"Kafka: sasl.mechanism={MECHANISM} needs AWS_REGION: the region of the cluster")
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError:
        needed = "needs Amazon's signer, not installed here: pip install 'rewindmq[kafka,msk]'"
        raise LogError(f"Kafka: sasl.mechanism={MECHANISM} {needed}") from None
    try:
        token, expires_ms = MSKAuthTokenProvider.generate_auth_token(region)
    except Exception as error:  # botocore has a class for each of its sources of credentials
        no_credentials = isinstance(error, AttributeError)  # the library's way to say so
        why = "no AWS credentials were found" if no_credentials else f"{type(error).__name__}: {error}"
        logger.error("no token for Amazon MSK: %s", why)
        raise LogError(f"Kafka: no token for Amazon MSK: {why}") from None
    return token, expires_ms / 1_000
