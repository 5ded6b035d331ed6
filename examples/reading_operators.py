"""What an operator has learned.

An operator is a matrix that can be looked at. This trains a small model on the demixing task, three harmonics under
noise and a hidden warp of time, and reads its operators: which entries subtract, what they do to a constant, which
frequencies they let through.
"""

from toa.data import HarmonicDemixing
from toa.nn import AttentionSpec
from toa.report.explain import draw_mixing, draw_operator, layer_table
from toa.report.operators import view_layers
from toa.tasks.demixing import DemixingConfig, demix, held_out_signals, regime_errors, train_demixer

# A run is a config; `toa demix` runs the same at two sizes that are worth its numbers. This one takes seconds.

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

# `view_layers` collects the operators of every layer, and, given a sample, the mixing W_mix that acts on the values for
# it: operators, scores and activation together.

layers = view_layers(model, (signals.noisy[:1].unsqueeze(-1),))
header, *rows = layer_table(layers[0])
for cells in (header, *rows):
    print("  ".join(f"{cell:>{len(name)}}" for cell, name in zip(cells, header, strict=True)))

# How to read a row. The size of M says how far the operator is from the identity that it began as. Row sums are the
# answer to a constant: 1 for an average, 0 for a difference. The distance from the simplex is 0 for whatever a softmax
# head can make, so it measures what softmax could not have done. Eigenvalues outside of the unit circle belong to
# patterns that grow.

s1, s2 = layers[0].operators
draw_operator(s2, "S2, on the values").savefig("s2.png")

# The same for the mixing of one signal. Red adds, blue subtracts; rows are outputs, columns inputs. A stripe along the
# diagonal would be a filter, the same weights at every step; a column is a step that all outputs look at alike.

assert layers[0].mixing is not None
draw_mixing(layers[0].mixing, "W_mix of one signal").savefig("w_mix.png")

# `toa explain MODEL` draws all of it for every layer and writes a page, for the folder of a run or the file that an
# estimator has saved.
