import pytest
import torch
from torch import nn

from tests.support import assert_near, message
from toa.nn import FlattenHead


def test_shared_head_is_one_linear_map_of_the_flattened_tokens():
    head = FlattenHead(3, 4, 5).double()
    plain = nn.Linear(12, 5).double()
    plain.load_state_dict(head.state_dict())
    tokens = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    assert_near(head(tokens), plain(tokens.reshape(2, 6, 12)).mT)


def test_individual_heads_are_one_linear_map_per_channel():
    head = FlattenHead(3, 4, 5, individual_channels=6).double()
    tokens = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    got = head(tokens)
    assert got.shape == (2, 5, 6)
    for c in range(6):
        assert_near(got[:, :, c], tokens[:, c].reshape(2, 12) @ head.weight[c].mT + head.bias[c])


@pytest.mark.parametrize("channels", [None, 50])
def test_heads_are_initialised_like_a_linear_layer(channels):
    head = FlattenHead(5, 5, 50, individual_channels=channels)
    for parameter in head.parameters():
        assert 0.9 * 0.2 < parameter.abs().max() <= 0.2


def test_dropout_acts_on_the_output_only_in_training():
    head = FlattenHead(3, 4, 50, dropout=0.5)
    tokens = torch.randn(2, 6, 3, 4)
    dropped = head(tokens) == 0.0
    assert 0.3 < dropped.float().mean() < 0.7
    assert not (head.eval()(tokens) == 0.0).any()


def test_wrong_sizes_raise():
    with pytest.raises(ValueError, match=message("horizon must be at least 1, got 0")):
        FlattenHead(3, 4, 0)
    with pytest.raises(ValueError, match=message("individual_channels must be at least 1, got 0")):
        FlattenHead(3, 4, 5, individual_channels=0)
    with pytest.raises(ValueError, match=message("dropout must lie in [0, 1), got 1.0")):
        FlattenHead(3, 4, 5, dropout=1.0)
    head = FlattenHead(3, 4, 5, individual_channels=6)
    with pytest.raises(
        ValueError, match=message("tokens must have shape (B, C, N, E)=(any, 6, 3, 4), got (2, 7, 3, 4)")
    ):
        head(torch.zeros(2, 7, 3, 4))
