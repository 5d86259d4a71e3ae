"""`auto` becomes a name with a reason; a name that can't be had is an error, never something else."""

from dataclasses import dataclass

import pytest
import torch

from h3runtime.backends.linear.select import choose_linear, linear_choice
from h3runtime.backends.select import choose, listing
from h3runtime.errors import BackendUnavailable, InvalidRequest

CPU = torch.device("cpu")


@dataclass
class Fake:
    name: str
    grade: str
    reason: str | None = None

    def why_unavailable(self, device: torch.device) -> str | None:
        assert device == CPU
        return self.reason


FAMILY = (Fake("fast", "validated", "needs a GPU"), Fake("odd", "experimental"), Fake("plain", "reference"))


def test_auto_takes_the_first_that_runs_and_says_why_not_the_others() -> None:
    chosen, why = choose("linear", FAMILY, "auto", CPU)
    assert chosen.name == "plain"
    assert "fast: needs a GPU" in why and "odd: experimental" in why


def test_a_name_is_taken_at_its_word_even_if_experimental() -> None:
    assert choose("linear", FAMILY, "odd", CPU)[0].name == "odd"


def test_an_unknown_name_lists_the_legal_ones() -> None:
    with pytest.raises(InvalidRequest) as caught:
        choose("attention", FAMILY, "sage9", CPU)
    (offence,) = caught.value.offences
    assert offence.field == "attention" and offence.legal == "auto, fast, odd, plain"
    assert "sage9" in caught.value.message


def test_an_unavailable_one_says_why() -> None:
    with pytest.raises(BackendUnavailable, match="fast can't run here: needs a GPU") as caught:
        choose("linear", FAMILY, "fast", CPU)
    assert caught.value.status == 422


def test_nothing_that_runs_is_an_error_too() -> None:
    with pytest.raises(BackendUnavailable, match="needs a GPU"):
        choose("linear", FAMILY[:2], "auto", CPU)


def test_the_listing_is_what_ready_shows() -> None:
    shown = listing(FAMILY, "plain", "because", CPU)
    assert (shown.default, shown.why) == ("plain", "because")
    assert shown.available == ("odd", "plain")
    assert shown.grades == {"fast": "validated", "odd": "experimental", "plain": "reference"}
    assert shown.unavailable == {"fast": "needs a GPU"}


def test_the_real_families_resolve() -> None:
    linear, why = choose_linear("auto", CPU)
    assert linear.name == "resident_bf16" and "exact way on cpu" in why
    choice = linear_choice(linear, why, CPU)
    assert set(choice.unavailable) == {"nvfp4", "nvfp4_lt", "nvfp4_cutlass", "nvfp4_te"}
    assert "never run" in choice.notes["nvfp4_cutlass"] and "never run" in choice.notes["nvfp4_te"]
