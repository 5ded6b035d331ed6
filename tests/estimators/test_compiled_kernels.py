"""Claims about the classifier once more, with all of its kernels, compiled, as for users."""

import pytest

from tests.estimators.test_classifier import (  # noqa: F401
    stacked,
    test_a_stack_whose_file_was_changed_is_refused,
    test_short_cases_are_padded_or_stretched_as_the_error_tells,
    test_shorter_cases_than_those_of_fit_are_padded_with_a_warning,
    test_the_default_weights_kernels_statistics_and_the_network,
    test_the_network_is_left_out_without_cases_errors_or_time,
    test_the_stack_classifies_cases_of_unequal_length,
    test_the_stack_knows_which_class_it_does_not_recognise,
    test_the_time_limit_is_without_the_compilation_and_shared_by_the_candidates,
)
from tests.estimators.test_stack import (  # noqa: F401
    kernels,
    test_kernels_are_restored_from_their_state,
    test_kernels_leave_the_state_of_the_process_as_it_was,
    test_other_kernels_than_saved_are_refused,
)

# quick tests have few kernels, which are not compiled: tests/conftest.py
pytestmark = pytest.mark.slow
