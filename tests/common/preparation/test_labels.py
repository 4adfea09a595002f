"""Labels: counted, weighted, and in standard units, over all sites."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rankdad.common.preparation import Preparing
from tests.common.preparation.federated import rows, table_spec
from tests.conftest import run_spec


def test_a_class_weighs_the_more_the_rarer_it_is_at_all_sites() -> None:
    task = {"name": "classification", "classes": 3, "class_weights": "balanced"}
    preparing = Preparing(run_spec(data={"shape": [1]}, task=task))
    sites = [rows(np.zeros((4, 1)), np.array([0, 0, 0, 1])), rows(np.zeros((2, 1)), np.array([0, 1]))]
    fit = preparing.fitted(sites)
    assert fit.class_counts is not None
    assert fit.class_weights is not None
    assert fit.class_counts.tolist() == [4, 2, 0]
    assert fit.class_weights.tolist() == pytest.approx([6 / (3 * 4), 6 / (3 * 2), 0])


def test_positives_weigh_as_much_as_negatives() -> None:
    task = {"name": "multi-label", "labels": 3, "class_weights": "balanced"}
    preparing = Preparing(run_spec(data={"shape": [1]}, task=task))
    labels = np.array([[1.0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]])
    fit = preparing.fitted([rows(np.zeros((2, 1)), labels[:2]), rows(np.zeros((2, 1)), labels[2:])])
    assert fit.class_weights is not None
    assert fit.class_weights.tolist() == [3, 1, 1]


def test_counts_are_known_of_a_table_without_weights() -> None:
    spec = table_spec(1, {"name": "classification", "classes": 2}, {"values": ["a", "b"]})
    fit = Preparing(spec).fitted([rows(np.zeros((3, 1)), np.array([0, 1, 1]))])
    assert fit.rows == 3
    assert fit.class_counts is not None
    assert fit.class_counts.tolist() == [1, 2]
    assert fit.class_weights is None


def test_a_number_is_learned_in_standard_units_and_told_in_its_own() -> None:
    preparing = Preparing(table_spec(1))
    labels = np.random.default_rng(0).normal(1e9, 2, 50)
    fit = preparing.fitted([rows(np.zeros((20, 1)), labels[:20]), rows(np.zeros((30, 1)), labels[20:])])
    given = torch.from_numpy(labels)
    transform = preparing.transform(fit, None)
    learned = transform.as_learned(given)
    np.testing.assert_allclose(learned, (labels - labels.mean()) / labels.std(), atol=1e-6)
    torch.testing.assert_close(transform.in_units(learned), given, rtol=1e-15, atol=0)


def test_a_constant_number_and_none_at_all_have_scale_1() -> None:
    preparing = Preparing(table_spec(1))
    constant = preparing.fitted([rows(np.zeros((3, 1)), np.full(3, 0.1)), rows(np.zeros((4, 1)), np.full(4, 0.1))])
    assert constant.target_mean == pytest.approx(0.1)
    assert constant.target_scale == 1
    nothing = preparing.fitted([rows(np.zeros((0, 1)))])
    assert (nothing.rows, nothing.target_mean, nothing.target_scale) == (0, 0.0, 1.0)
