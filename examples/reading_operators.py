"""
What an operator has learned
============================

An operator is a matrix that can be inspected. This example trains a small model on the demixing task (three harmonics
with noise and a hidden warp of time) and inspects its operators: which entries subtract, how they act on a constant,
which frequencies they pass.
"""

from toa.nn import AttentionSpec
from toa.report.explain import draw_mixing, draw_operator, layer_table
from toa.report.operators import view_layers
from toa_paper.demixing import DemixingConfig, HarmonicDemixing, demix, held_out_signals, regime_errors, train_demixer

# %%
# `toa demix` runs the same task at two larger sizes. This one takes seconds.

config = DemixingConfig(
    attention=AttentionSpec(name="toa-relu", score_norm="l2", sor=False),
    signals=HarmonicDemixing().scaled(56),
    steps=200,
    learning_rate=5e-3,
    embed_dim=16,
    ff_dim=32,
    num_layers=1,
    batch_size=32,
    test_signals=256,
)
model, _ = train_demixer(config)
signals = held_out_signals(config)
errors = regime_errors(demix(model, signals.noisy), signals)
print(f"mean squared error {errors['mse']:.4f}; of the noisy signals {config.signals.noise**2:.4f}")

# %%
# `view_layers` collects the operators of every layer. Given a sample, it also computes the matrix W_mix that mixes the
# values: operators, scores and activation together.

layers = view_layers(model, (signals.noisy[:1].unsqueeze(-1),))
header, *rows = layer_table(layers[0])
for cells in (header, *rows):
    print("  ".join(f"{cell:>{len(name)}}" for cell, name in zip(cells, header, strict=True)))

# %%
# How to read a line: the size of M is the distance from the identity, where the operator started. Row sums are the
# response to a constant: 1 for an average, 0 for a difference. The distance from the simplex is 0 for every matrix
# that a softmax head can produce. Eigenvalues outside the unit circle belong to patterns that grow.

s1, s2 = layers[0].operators
draw_operator(s2, "S2, on the values").savefig("s2.png")

# %%
# The mixing of one signal: red adds, blue subtracts; rows are outputs, columns are inputs. A stripe along the
# diagonal is a filter, with the same weights at every step; a column is a step that all outputs use in the same way.

assert layers[0].mixing is not None
draw_mixing(layers[0].mixing, "W_mix of one signal").savefig("w_mix.png")

# %%
# `toa explain MODEL` draws this for every layer and writes a page. MODEL is the folder of a run or the file of a saved
# estimator.
