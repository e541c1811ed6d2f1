"""What counts as the output that a page shows."""

from __future__ import annotations

from tests.docs.transcript import Transcript

ID, OTHER = "6b01475714001c3a87bb78b9", "6b01475714001c3a87bb78b8"


def test_ellipses_durations_and_spaces_match() -> None:
    assert Transcript().matches("leader of epoch 3, … 4 s ago", "leader of epoch 12,   last heartbeat 10.5 s ago\n")
    assert not Transcript().matches("pending 1", "pending 2")


def test_times_match() -> None:
    shown = '13:02:00 UTC, 3 min 5 s ago; at 2026-01-31 09:30:00; "2026-01-31T10:48:00.000Z"'
    assert Transcript().matches(
        shown, '07:15:59 UTC, 1 min 10 s ago; at 2027-02-01 10:00:01; "2027-02-01T10:00:01.123Z"'
    )
    for other in ("07:15 UTC", "1 Feb, 07:15:59 UTC", "31 Dec 2027, 07:15 UTC"):
        assert Transcript().matches("until 13:02:10 UTC, in 3 h 12 min", f"until {other}, in 2 min")
    assert not Transcript().matches("until 13:02:10 UTC", "until 13:02:10")
    assert Transcript().matches('{"new_timeout_at":1795243332.525}', '{"new_timeout_at":1895485991.2}')


def test_an_id_must_be_the_same_at_each_occurrence() -> None:
    transcript = Transcript()
    assert transcript.matches(f'{{"_id":"{ID}"}}', f'{{"_id":"{OTHER}"}}')
    assert not transcript.matches(ID, ID)
    assert transcript.filled_in(f"show {ID}") == f"show {OTHER}"


def test_the_beginning_of_a_secret_matches_it() -> None:
    transcript = Transcript()
    assert transcript.matches('"lock_token":"a486b0d1…", …', '"lock_token":"ffff0000ffff", "x": 1')
    assert transcript.filled_in("TOKEN=a486b0d1…") == "TOKEN=ffff0000ffff"
