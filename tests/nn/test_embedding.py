import pytest
import torch

from tests.support import assert_near, message
from toa.nn import PatchEmbedding, PointEmbedding, VariateEmbedding, count_patches, sinusoidal_positions


@pytest.mark.parametrize(("lookback", "patches"), [(96, 12), (336, 42), (512, 64), (16, 2), (97, 12), (103, 12)])
def test_number_of_patches_matches_the_published_one(lookback, patches):
    assert count_patches(lookback, 16, 8) == patches
    assert PatchEmbedding(lookback, 4)(torch.zeros(1, lookback, 1)).shape == (1, 1, patches, 4)


@pytest.mark.parametrize(("patch_len", "stride"), [(24, 2), (4, 4), (3, 5), (1, 1)])
def test_number_of_patches_matches_the_count(patch_len, stride):
    embed = PatchEmbedding(26, 4, patch_len=patch_len, stride=stride)
    assert embed(torch.zeros(1, 26, 1)).shape[2] == embed.num_patches == count_patches(26, patch_len, stride)


@pytest.mark.parametrize("bias", [True, False])
def test_token_is_projected_patch_plus_position(bias):
    embed = PatchEmbedding(20, 5, patch_len=8, stride=4, bias=bias).double()
    series = torch.randn(2, 20, 3, dtype=torch.float64)
    got = embed(series)
    padded = torch.cat((series, series[:, -1:].repeat(1, 4, 1)), 1)
    for n in range(5):
        patch = padded[:, 4 * n : 4 * n + 8].mT
        assert_near(got[:, :, n], embed.projection(patch) + embed.position[n])


def test_channels_do_not_see_each_other():
    embed = PatchEmbedding(20, 5, patch_len=8, stride=4)
    series = torch.randn(2, 20, 3)
    changed = series.clone()
    changed[:, :, 1] += 1.0
    assert torch.equal(embed(series)[:, [0, 2]], embed(changed)[:, [0, 2]])


def test_learned_positions_are_small_parameters():
    embed = PatchEmbedding(96, 64)
    assert embed.position.shape == (12, 64)
    assert 0.015 < embed.position.abs().max() <= 0.02
    assert "position" in dict(embed.named_parameters())


def test_sinusoidal_positions_are_fixed_and_not_in_the_state():
    embed = PatchEmbedding(96, 64, positions="sinusoidal", bias=False)
    assert list(embed.state_dict()) == ["projection.weight"]
    assert embed.double().position.dtype == torch.float64


@pytest.mark.parametrize("width", [6, 7])
def test_sinusoidal_positions_follow_their_formula(width):
    got = sinusoidal_positions(5, width)
    for n in range(5):
        for e in range(width):
            angle = torch.tensor(n / 10000 ** (e // 2 * 2 / width), dtype=torch.float64)
            assert_near(got[n, e], angle.cos() if e % 2 else angle.sin(), 1e-6)


def test_marks_are_tokens_after_the_variates():
    embed = VariateEmbedding(9, 4).double()
    series, marks = torch.randn(2, 9, 3, dtype=torch.float64), torch.randn(2, 9, 2, dtype=torch.float64)
    got = embed(series, marks)
    assert got.shape == (2, 5, 4)
    assert_near(got[:, :3], embed(series))
    assert_near(got[:, 4], embed.projection(marks[:, :, 1]))


def test_wrong_arguments_raise():
    with pytest.raises(ValueError, match=message("lookback must be at least patch_len=16, got 15", "shorter patches")):
        PatchEmbedding(15, 4)
    with pytest.raises(ValueError, match=message("stride must be at least 1, got 0")):
        PatchEmbedding(96, 4, stride=0)
    with pytest.raises(ValueError, match=message("unknown positions 'x'; known: learned, sinusoidal.")):
        PatchEmbedding(96, 4, positions="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message("dropout must lie in [0, 1), got 1.0")):
        VariateEmbedding(9, 4, dropout=1.0)


def test_wrong_series_raise():
    with pytest.raises(ValueError, match=message("series must have shape (B, L, C)=(any, 96, any), got (2, 95, 1)")):
        PatchEmbedding(96, 4)(torch.zeros(2, 95, 1))
    embed = VariateEmbedding(9, 4)
    with pytest.raises(ValueError, match=message("series must have shape (B, L, C)=(any, 9, any), got (2, 8, 1)")):
        embed(torch.zeros(2, 8, 1))
    with pytest.raises(ValueError, match=message("marks must have shape (B, L, F)=(2, 9, any), got (1, 9, 4)")):
        embed(torch.zeros(2, 9, 1), torch.zeros(1, 9, 4))


def test_point_token_is_a_circular_convolution_of_the_series():
    embed = PointEmbedding(2, 4, 6, positions="none").double()
    assert isinstance(embed.projection, torch.nn.Conv1d)
    series = torch.randn(3, 6, 2, dtype=torch.float64)
    taps = embed.projection.weight.unbind(-1)  # each (E, C)
    expected = sum(series.roll(1 - tap, 1) @ weight.mT for tap, weight in enumerate(taps))
    assert isinstance(expected, torch.Tensor)
    assert_near(embed(series), expected)


def test_point_tokens_add_positions_and_marks():
    embed = PointEmbedding(2, 4, 8, num_marks=3, values="linear").double()
    assert embed.marks is not None
    series, marks = torch.randn(2, 6, 2, dtype=torch.float64), torch.randn(2, 6, 3, dtype=torch.float64)
    expected = embed.projection(series) + sinusoidal_positions(6, 4).double() + marks @ embed.marks.weight.mT
    assert_near(embed(series, marks), expected)


def test_point_positions_are_learned_fixed_or_none():
    assert "position" in dict(PointEmbedding(2, 4, 8, positions="learned").named_parameters())
    assert list(PointEmbedding(2, 4, 8).state_dict()) == ["projection.weight"]
    unplaced = PointEmbedding(2, 4, 8, positions="none")
    assert unplaced(torch.zeros(1, 9, 2)).shape == (1, 9, 4)
    with pytest.raises(ValueError, match=message("series must have at most num_tokens=8 steps, got 9")):
        PointEmbedding(2, 4, 8)(torch.zeros(1, 9, 2))


def test_convolution_weights_have_kaiming_variance():
    weight = PointEmbedding(32, 512, 8).projection.weight
    assert weight.std().item() == pytest.approx((2.0 / (3 * 32)) ** 0.5, rel=0.02)


def test_wrong_points_raise():
    with pytest.raises(ValueError, match=message("unknown values 'x'; known: conv, linear.")):
        PointEmbedding(2, 4, 8, values="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message("unknown positions 'x'; known: learned, sinusoidal, none.")):
        PointEmbedding(2, 4, 8, positions="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message("marks must be given", "num_marks=3, got None")):
        PointEmbedding(2, 4, 8, num_marks=3)(torch.zeros(1, 8, 2))
    with pytest.raises(ValueError, match=message("marks must be None", "num_marks=0, got shape (1, 8, 3)")):
        PointEmbedding(2, 4, 8)(torch.zeros(1, 8, 2), torch.zeros(1, 8, 3))
    with pytest.raises(ValueError, match=message("marks must have shape (B, L, F)=(1, 8, 3), got (1, 7, 3)")):
        PointEmbedding(2, 4, 8, num_marks=3)(torch.zeros(1, 8, 2), torch.zeros(1, 7, 3))
