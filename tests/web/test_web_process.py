"""The web processes that tests share."""

from __future__ import annotations

import pytest

from tests.eventually import eventually
from tests.web.web_process import shared_web


def test_the_end_of_a_shared_process_is_reported_with_its_log(tmp_path_factory: pytest.TempPathFactory) -> None:
    def use() -> None:
        assert shared_web(tmp_path_factory, QM_API_KEYS="nonsense").child.poll() is not None

    with pytest.raises(pytest.fail.Exception, match=r"(?s)ended with exit code 2.*QM_API_KEYS: must be"):
        eventually(use)
