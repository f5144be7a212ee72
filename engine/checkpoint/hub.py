"""A model of the Hugging Face hub, by its id, in huggingface_hub's own cache."""

from __future__ import annotations

import logging
from pathlib import Path

from engine.checkpoint.error import CheckpointError

TIMEOUT_SECONDS = 10.0  # for the hub to answer at all; a download that goes on may take as long as it takes
_WANTED = ["*.json", "*.safetensors", "*.jinja"]

_log = logging.getLogger(__name__)


def download(repo_id: str, instead: str) -> Path:
    """The directory of a snapshot. Where the hub cannot be reached, one that is cached is used, with a warning.

    instead: what else to name, for the error message.
    Errors: CheckpointError: no such model, no access to it, or hub out of reach and nothing cached.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        # snapshot_download waits for its first answer without a limit, so this asks first.
        HfApi().model_info(repo_id, timeout=TIMEOUT_SECONDS)
        return Path(snapshot_download(repo_id, allow_patterns=_WANTED, etag_timeout=TIMEOUT_SECONDS))
    except GatedRepoError:
        raise CheckpointError(
            f"{repo_id} is gated: accept its conditions on its page of the hub, then set HF_TOKEN"
        ) from None
    except RepositoryNotFoundError:
        raise CheckpointError(
            f"there is no directory {repo_id} here, and no model {repo_id} on the hub that is public or open to "
            f"HF_TOKEN: {instead}"
        ) from None
    except Exception as error:  # whatever the HTTP library beneath the hub's client raises
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        cached = _cached(repo_id)
        if cached is None:
            raise CheckpointError(
                f"there is no directory {repo_id} here, it is not in the hub's cache, "
                f"and the hub did not give it ({reason}): {instead}"
            ) from error
        _log.warning("the hub did not answer (%s): using the cached %s", reason, cached)
        return cached


def _cached(repo_id: str) -> Path | None:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repo_id, allow_patterns=_WANTED, local_files_only=True))
    except Exception:  # absent or incomplete: the caller reports why the hub was of no help
        return None
