"""The ways in which `mutants.py` breaks the code, and the fast tests that must notice each."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """Replace one piece of text in one file.

    Attributes:
        file: the file, relative to `src/doublecv`.
        old: the text, which occurs once in the file.
        new: what takes its place.
        tests: arguments for pytest that select the fast tests that must fail.
    """

    file: str
    old: str
    new: str
    tests: str


DISTRIBUTIONS = "tests/test_distributions.py"
BATTERY = "tests/estimators/test_battery.py -k network"
PROPOSITIONS = "tests/estimators/test_propositions.py"
COUPLINGS = "tests/estimators/test_couplings.py tests/estimators/test_battery.py -k 'test_couplings or network'"
PARTS = "tests/estimators/test_parts.py"
CONCRETE = "tests/estimators/test_concrete.py tests/estimators/test_rebar.py"
RELAX = "tests/estimators/test_relax.py"
STEIN = "tests/estimators/test_stein.py tests/estimators/test_rodeo.py"
MOMENTS = "tests/estimators/test_moments.py"
NORM = "tests/estimators/test_norm.py"
SURROGATE = "tests/estimators/test_surrogate.py"
PATHS = "tests/test_paths.py"
BOUND = "tests/estimators/test_bound.py"
CATEGORICAL = "tests/estimators/test_categorical.py"
POLICY = "tests/test_policy_gradient.py"
JAX = "tests/jax/test_jax_expectation.py -k 'every_gradient or TestLearnedNumbers or TestUseOfTheResult'"
JAX_AUX = "tests/jax/test_jax_aux.py -k aux"
JAX_ERRORS = "tests/jax/test_jax_errors.py -k 'twice or zero'"
EQUALITY = "tests/torch/test_torch_equality.py"
TORCH_AUX = "tests/torch/test_torch_aux.py"
TORCH_SMALL = "tests/torch/test_torch_small.py"
TORCH_STATE = "tests/torch/test_torch_learned_state.py"
TORCH_ERRORS = "tests/torch/test_torch_errors.py"
MASKED = "tests/test_numerics.py -k 'masked and relax'"
NARROW = "tests/test_numerics.py -k '16_bits and 1000'"
DAMAGE = "tests/lab/report/test_damage.py -k 'lost_its_end or fits_its_checksum'"
FILES = "tests/lab/common/test_files.py"
RECORDS = "tests/lab/common/test_records.py"
CHECKPOINT = "tests/lab/train/test_checkpoint.py"

MUTANTS = [
    # Distributions.
    Mutant("arrays.py", "xp.where(array >= 0, xp.ones_like(decay), decay)", "xp.ones_like(decay)", DISTRIBUTIONS),
    Mutant("distributions.py", "return x - self.mean", "return x + self.mean", DISTRIBUTIONS),
    Mutant("distributions.py", "lambda: self.mean * self.one_minus_mean)", "lambda: self.mean)", DISTRIBUTIONS),
    Mutant("distributions.py", "* v * (self.one_minus_mean - self.mean)", "* v * self.one_minus_mean", BATTERY),
    Mutant("distributions.py", "(x * logits - positive_part)", "(logits - positive_part)", DISTRIBUTIONS),
    Mutant("distributions.py", "+ distance * self.min_prob", "- distance * self.min_prob", DISTRIBUTIONS),
    Mutant("distributions.py", "(other_of_one - of_one)", "(other_of_one + of_one)", DISTRIBUTIONS),
    Mutant("distributions.py", "noise < self.xp.astype(self.mean", "noise > self.xp.astype(self.mean", DISTRIBUTIONS),
    Mutant("distributions.py", "mean * (v - self.xp.sum(mean * v,", "mean * (v - self.xp.sum(v,", DISTRIBUTIONS),
    Mutant("distributions.py", "squares - mean * self.xp.sum(squares,", "squares - self.xp.sum(squares,", BATTERY),
    Mutant("distributions.py", "self.log_mean - other.log_mean", "self.log_mean", DISTRIBUTIONS),
    Mutant("distributions.py", "(noise[..., None] < upper)", "(noise[..., None] < 1)", DISTRIBUTIONS),
    Mutant(
        "distributions.py",
        "return -self.dot(self.mean, self.log_mean)",
        "return -self.dot(self.mean, self.mean)",
        DISTRIBUTIONS,
    ),
    # Averages and the score function.
    Mutant("estimators/averages.py", "- v) / (v.shape[0] - 1)", "- v) / v.shape[0]", BATTERY),
    Mutant("estimators/averages.py", "(sum_over_samples(v)[None] - v)", "(sum_over_samples(v)[None] + 0 * v)", BATTERY),
    Mutant(
        "estimators/averages.py", "leave_one_out((v[:pairs] + v[pairs:]) / 2)", "(v[:pairs] + v[pairs:]) / 2", BATTERY
    ),
    Mutant(
        "estimators/averages.py",
        "else q.weighted_sum(weight, v) / v.shape[0]",
        "else q.weighted_sum(weight, v)",
        BATTERY,
    ),
    Mutant(
        "estimators/averages.py",
        "else sum_over_samples(v) / v.shape[0]",
        "else sum_over_samples(v)",
        "tests/estimators/test_bound.py",
    ),
    Mutant(
        "estimators/averages.py",
        "return q.covariance_product(sum_over_samples(v) / v.shape[0])",
        "return q.covariance_product(sum_over_samples(v))",
        BATTERY,
    ),
    Mutant(
        "estimators/score_function.py",
        "evaluation.f - leave_one_out(evaluation.f))",
        "evaluation.f - leave_one_out(evaluation.f) ** 2)",
        PROPOSITIONS,
    ),
    Mutant(
        "estimators/score_function.py",
        "subtract_from_samples(evaluation.f, evaluation.expected_f)",
        "evaluation.f * evaluation.expected_f",
        BATTERY,
    ),
    Mutant(
        "estimators/score_function.py",
        "g0 = score_gradient(q, evaluation.x, evaluation.f)",
        "g0 = score_gradient(q, evaluation.x, abs(evaluation.f))",
        BATTERY,
    ),
    # Taylor expansions.
    Mutant(
        "estimators/taylor.py",
        "residual) + q.covariance_product",
        "residual) - q.covariance_product",
        BATTERY,
    ),
    Mutant(
        "estimators/taylor.py",
        "difference - q.dot(evaluation.df_mean",
        "difference + q.dot(evaluation.df_mean",
        BATTERY,
    ),
    Mutant("estimators/averages.py", "return q.dot(v[::-1], score)", "return q.dot(v, score)", BATTERY),
    Mutant(
        "estimators/averages.py",
        "return q.dot(total[None] - v, score) / (v.shape[0] - 1)",
        "return q.dot(total[None] - v, score) / v.shape[0]",
        BATTERY,
    ),
    Mutant(
        "estimators/taylor.py",
        "b = q.dot(self.coupling.mean_of_independent(evaluation.df), score)",
        "b = q.dot(evaluation.df, score)",
        BATTERY,
    ),
    Mutant(
        "estimators/taylor.py",
        "h, size = score_gradient(q, x, b) - c,",
        "h, size = score_gradient(q, x, b) + c,",
        BATTERY,
    ),
    Mutant(
        "estimators/taylor.py",
        "h, size = -score_gradient(q, x, leave_one_out(b))",
        "h, size = -score_gradient(q, x, b)",
        BATTERY,
    ),
    # The quadratic form.
    Mutant("estimators/quadratic.py", "(P**2 - compensator) * inverse", "P**2 * inverse", BATTERY),
    Mutant("estimators/quadratic.py", "q.pairwise_dot(score, vectors)", "q.pairwise_dot(vectors, score)", BATTERY),
    Mutant("estimators/quadratic.py", '"own": leave_one_out(of_P.own)', '"own": of_P.own', BATTERY),
    Mutant("estimators/quadratic.py", '"own_square": leave_one_out(of_Q.own)', '"own_square": of_Q.own', BATTERY),
    Mutant("estimators/quadratic.py", "Average(weights[0], moment)", "Average(2 * weights[0], moment)", BATTERY),
    Mutant("estimators/quadratic.py", "xp.sum(A, axis=0) - own", "xp.sum(A, axis=0)", BATTERY),
    Mutant(
        "estimators/quadratic.py",
        "keepdims=True) - current - crossed",
        "keepdims=True) - current",
        f"{MOMENTS} -k direction",
    ),
    Mutant(
        "estimators/quadratic.py", "square = q.dot(vectors, covariance)", "square = q.dot(vectors, vectors)", BATTERY
    ),
    # Paths.
    Mutant(
        "estimators/averages.py",
        "return q.scale(weight, v) / v.shape[0] if q.visited",
        "return q.scale(weight, v) if q.visited",
        PATHS,
    ),
    Mutant(
        "estimators/averages.py",
        "return v / v.shape[0] if q.visited else",
        "return v if q.visited else",
        "tests/estimators/test_bound.py",
    ),
    Mutant(
        "estimators/averages.py",
        "return q.covariance_product(leave_one_out(v)) / v.shape[0]",
        "return q.covariance_product(v) / v.shape[0]",
        PATHS,
    ),
    Mutant(
        "estimators/averages.py",
        "score), q.covariance_product(others) / v.shape[0]",
        "score), q.covariance_product(others)",
        PATHS,
    ),
    # The correction at the path of another sample, and the square's correction without its second part.
    Mutant(
        "estimators/averages.py",
        "return q.covariance_product(leave_one_out(v)) / v.shape[0]",
        "return leave_one_out(q.covariance_product(v)) / v.shape[0]",
        PATHS,
    ),
    Mutant("estimators/quadratic.py", "+ 2 * product * q.sum_of_earlier(others * score)", "", PATHS),
    Mutant("estimators/quadratic.py", "pairs = K * (K - 1)", "pairs = K**2", PATHS),
    # Bounds over several samples, and couplings of one-hot samples.
    Mutant("estimators/bound.py", "advantage = bound - without", "advantage = bound + without", BOUND),
    Mutant(
        "estimators/bound.py", "advantage - xp.exp(log_weight - bound)", "advantage + xp.exp(log_weight - bound)", BOUND
    ),
    Mutant(
        "estimators/bound.py",
        "current = omega * xp.sum(of_others, axis=1)",
        "current = xp.sum(of_others, axis=1)",
        BOUND,
    ),
    Mutant(
        "estimators/bound.py",
        "leave_one_out(log_weight)[:, None], log_weight[None])",
        "log_weight[:, None], log_weight[None])",
        BOUND,
    ),
    Mutant("estimators/categorical.py", "axis=1) / (K * (K - 1))", "axis=1) / K**2", CATEGORICAL),
    Mutant(
        "estimators/categorical.py",
        "return mean * (leftwards - rightwards)",
        "return mean * (leftwards + rightwards)",
        CATEGORICAL,
    ),
    Mutant(
        "estimators/categorical.py",
        "apart = (1 - stop) / (1 - both_given_one)",
        "apart = 1 / (1 - both_given_one)",
        CATEGORICAL,
    ),
    # Samples from elsewhere.
    Mutant(
        "policy_gradient.py",
        "result = wide - _leave_one_out(wide, weight)",
        "result = wide + _leave_one_out(wide, weight)",
        POLICY,
    ),
    Mutant(
        "policy_gradient.py",
        "return (total - values * weight) / xp.clip(number - weight, 1, None)",
        "return total / xp.clip(number, 1, None)",
        POLICY,
    ),
    Mutant("policy_gradient.py", "others / (others + 1) * _ratio(error,", "_ratio(error,", POLICY),
    Mutant(
        "policy_gradient.py", "(known - detach(known)), axis=0) / number", "(known - detach(known)), axis=0)", POLICY
    ),
    Mutant(
        "policy_gradient.py",
        "best = xp.sum(_binomial(rank, k - 1) * weight",
        "best = xp.sum(_binomial(rank, k) * weight",
        POLICY,
    ),
    # Parts and moments.
    Mutant("estimators/parts.py", "(coefficients[name] * part for", "(part for", PARTS),
    Mutant("estimators/parts.py", "(self.f + alpha * self.b) - alpha", "(self.f + alpha * self.b) + alpha", BATTERY),
    Mutant("estimators/parts.py", "self._estimate(self.b) - self.c", "self._estimate(self.b) + self.c", PARTS),
    Mutant(
        "estimators/parts.py",
        "sum((-weighted_mean(q, weight, terms[key]) for",
        "sum((weighted_mean(q, weight, terms[key]) for",
        PARTS,
    ),
    Mutant(
        "estimators/parts.py",
        "derivatives[name] - r for",
        "derivatives[name] + r for",
        PARTS,
    ),
    Mutant(
        "estimators/parts.py",
        "self.q.dot(cotangent, self.score) / self.score.shape[0]",
        "self.q.dot(cotangent, self.score)",
        PARTS,
    ),
    Mutant("estimators/parts.py", "(along @ self.table.reshape(n, K * size))", "(self.table.sum(axis=0))", PARTS),
    Mutant("estimators/judgement.py", "return -scale * xp.linalg.solve", "return scale * xp.linalg.solve", PARTS),
    Mutant(
        "estimators/scale.py",
        'lasting = xp.where(excess < averages["log_excess"]',
        'lasting = xp.where(excess > averages["log_excess"]',
        f"{MOMENTS} -k outlier_changes",
    ),
    Mutant(
        "estimators/moments.py",
        "(unit / share) ** orders",
        "unit**orders / share",
        f"{MOMENTS} -k neither_the_scale",
    ),
    Mutant(
        "estimators/moments.py",
        "q.scale(xp.sqrt(weight), stacked)",
        "q.scale(weight, stacked)",
        f"{MOMENTS} -k neither_the_scale",
    ),
    Mutant(
        "estimators/moments.py",
        "_sum(xp, weight**2, squared)",
        "_sum(xp, weight, squared)",
        f"{MOMENTS} -k neither_the_scale",
    ),
    Mutant(
        "estimators/scale.py",
        "plausible = (excess <= JUMP) | (lasting > JUMP) | (few & ~measured)",
        "plausible = excess == excess",
        f"{MOMENTS} -k outlier_changes",
    ),
    Mutant(
        "estimators/judgement.py",
        "* elements - penalty",
        "* elements",
        f"{MOMENTS} -k 'becomes_rare or few_categories'",
    ),
    Mutant(
        "estimators/judgement.py",
        "cautious - lower * rare",
        "cautious + lower * rare",
        f"{MOMENTS} -k 'becomes_rare or few_categories'",
    ),
    Mutant(
        "estimators/moments.py",
        "xp.exp(-xp.where(running.starting, running.moved_by, zero) * orders)",
        "xp.exp(-zero * orders)",
        f"{MOMENTS} -k used_soon",
    ),
    Mutant(
        "estimators/judgement.py", "LARGEST_MULTIPLE = 1.5", "LARGEST_MULTIPLE = 1e6", f"{MOMENTS} -k rare_outcomes"
    ),
    Mutant("estimators/judgement.py", "at_least(entropy, 1)", "at_least(entropy, 2.3)", f"{MOMENTS} -k one_outcome"),
    Mutant("estimators/judgement.py", "too_few_held**2 + ", "", f"{MOMENTS} -k one_outcome"),
    Mutant(
        "estimators/moments.py", "scale.has_fallen(running.state) & (", "False & (", "tests/estimators/test_scale.py"
    ),
    Mutant("estimators/scale.py", "-CLEAR * xp.sqrt(", "-3 * CLEAR * xp.sqrt(", "tests/estimators/test_scale.py"),
    Mutant("estimators/scale.py", "xp.where(returned, earlier, log_own)", "log_own", "tests/estimators/test_scale.py"),
    Mutant("estimators/scale.py", "else (larger, lowest)", "else (larger, FALL)", "tests/estimators/test_scale.py"),
    Mutant(
        "estimators/judgement.py",
        "at_most(MANY_BITS / bits, 1) * now.magnitude",
        "now.magnitude",
        f"{MOMENTS} -k small_coefficients",
    ),
    Mutant("arrays.py", "range(0, columns, step)", "range(0, columns - 1, step)", "tests/test_numerics.py -k blocks"),
    Mutant("estimators/judgement.py", "at_most(1 / noise, 2) * ", "", "tests/lab/bench/test_harm.py -k many"),
    Mutant("estimators/judgement.py", "/ (bits * noise)", "/ bits", "tests/lab/bench/test_harm.py -k many"),
    Mutant("estimators/judgement.py", "+ learned / (held + TINY), 0)", "+ 0 * learned, 0)", f"{MOMENTS} -k equation"),
    Mutant(
        "estimators/judgement.py",
        "xp.reshape(unexplained / (held + TINY)",
        "xp.reshape(0 * held",
        f"{MOMENTS} -k equation",
    ),
    Mutant("estimators/scale.py", "ROUNDING = 100.0", "ROUNDING = 0.0", f"{MOMENTS} -k almost_certain"),
    Mutant("estimators/scale.py", " | (few & ~measured)", "", f"{MOMENTS} -k beside_no_g0"),
    Mutant(
        "estimators/scale.py",
        "measured & (log_own < lasting)",
        "measured & (lasting < 0)",
        f"{MOMENTS} -k g0_as_before",
    ),
    Mutant("estimators/judgement.py", "Trust(caution=0.04", "Trust(caution=0.0004", f"{MOMENTS} -k rare_outcomes"),
    Mutant(
        "estimators/moments.py", "LARGEST_JUDGED = 25.0", "LARGEST_JUDGED = 1e9", f"{MOMENTS} -k few_batch_elements"
    ),
    Mutant(
        "estimators/moments.py",
        "share * own, share * with_g0, share * square",
        "share * own, with_g0, share * square",
        f"{MOMENTS} -k counts_in_the_judgement",
    ),
    Mutant("estimators/surrogate.py", "direction=evaluation.df,", "", f"{SURROGATE} -k direction_of_the_gradient"),
    Mutant(
        "estimators/moments.py",
        "OUTDATED, LEAST_BITS, FASTEST = 0.5,",
        "OUTDATED, LEAST_BITS, FASTEST = 0.0,",
        f"{MOMENTS} -k forgotten",
    ),
    Mutant(
        "estimators/surrogate.py",
        "sees_f=False, fall=fall)",
        "sees_f=False)",
        "tests/estimators/test_surrogate_factor.py -k very_step",
    ),
    Mutant(
        "estimators/surrogate.py",
        "leave_one_out(share) * of_r",
        "share * of_r",
        "tests/estimators/test_surrogate_factor.py -k below_the_floor",
    ),
    Mutant(
        "estimators/surrogate.py",
        "exact = q.scale(sum_over_samples(share) / share.shape[0], exact)",
        "exact = 1 * exact",
        "tests/estimators/test_surrogate_factor.py -k below_the_floor",
    ),
    Mutant(
        "estimators/surrogate.py",
        "self.base.formula(q, _residual(evaluation, used, share), of_base",
        "self.base.formula(q, _residual(evaluation, used, None), of_base",
        "tests/estimators/test_surrogate_factor.py -k below_the_floor",
    ),
    Mutant(
        "estimators/surrogate.py",
        "df=share[..., None] * residual.df,",
        "",
        "tests/estimators/test_surrogate_factor.py -k below_the_floor",
    ),
    Mutant(
        "estimators/surrogate.py",
        "has_fallen(judged) | (",
        "(",
        "tests/estimators/test_surrogate_factor.py -k uses_no_control_variate",
    ),
    Mutant(
        "estimators/surrogate.py",
        ' | (judged["log_excess"] > JUMP)',
        "",
        "tests/estimators/test_surrogate_factor.py -k uses_no_control_variate",
    ),
    Mutant(
        "estimators/quadratic.py",
        "compensator_along, (_, square_along)",
        "_, (_, square_along)",
        f"{MOMENTS} -k other_vectors",
    ),
    Mutant("estimators/norm.py", "returned = (fallen > 0)", "returned = (fallen > 1e9)", f"{NORM} -k taken_back"),
    Mutant(
        "estimators/norm.py",
        "xp.where(returned, fallen, z -",
        "xp.where(returned, 0 * z, z -",
        f"{NORM} -k taken_back",
    ),
    Mutant(
        "estimators/norm.py",
        "2 * xp.log(xp.where(seen, norms[4] / total, one) + TINY) - rise",
        "norms[2] / total - rise",
        f"{NORM} -k flat_do_not_move",
    ),
    Mutant("estimators/norm.py", "DEPTH = 0.5", "DEPTH = 50.0", f"{NORM} -k in_the_same_step"),
    Mutant(
        "estimators/norm.py",
        "CLEAR, DOUBT, MARGIN = 4.0, 2.0",
        "CLEAR, DOUBT, MARGIN = 4e3, 2e3",
        f"{NORM} -k clear_fall",
    ),
    Mutant(
        "estimators/norm.py",
        "xp.exp((log_norm + offset - DEPTH * variance) / 2)",
        "0 * log_norm",
        f"{NORM} -k in_the_same_step",
    ),
    Mutant("estimators/norm.py", "rise + xp.where(first, moved_by, zero)", "rise", f"{MOMENTS} -k neither_the_scale"),
    Mutant(
        "estimators/norm.py", "norms[0] / xp.where(weight > 0, weight, one)", "one", f"{NORM} -k without_a_gradient"
    ),
    Mutant("estimators/norm.py", "(norm > 0) & xp.isfinite(norm)", "norm > 0", f"{NORM} -k without_a_gradient"),
    Mutant("estimators/quadratic.py", "along**2 - compensator_along * to_unit**2", "along**2 - 1", PATHS),
    Mutant(
        "estimators/quadratic.py",
        "Average(weights[1], self.covariance)",
        "Average(weights[0], self.covariance)",
        BATTERY,
    ),
    Mutant(
        "estimators/quadratic.py",
        "has_direction, damping /",
        "has_direction, 1 /",
        "tests/estimators/test_norm.py -k orders",
    ),
    Mutant("estimators/quadratic.py", "Average(weights[1], moment)", "Average(weights[0], moment)", BATTERY),
    Mutant(
        "estimators/quadratic.py",
        "xp.where(has_direction, damping / (floored + least**0.5), xp.zeros_like(floored))",
        "damping / (floored + least**0.5)",
        f"{MOMENTS} -k almost_0",
    ),
    Mutant(
        "estimators/surrogate.py",
        "differences = subtract_from_samples(values, values[0])",
        "differences = values",
        "tests/estimators/test_surrogate.py -k agree",
    ),
    Mutant("estimators/quadratic.py", '"crossed": -1 / (K - 1)', '"crossed": 1 / (K - 1)', f"{MOMENTS} -k direction"),
    Mutant(
        "estimators/parts.py",
        "return size + q.xp.stack(",
        "return size + 0 * q.xp.stack(",
        f"{MOMENTS} -k magnitude_is",
    ),
    # Couplings.
    Mutant(
        "estimators/couplings.py",
        "return sum_over_samples(differences) * (1 - _bernoulli(q).min_prob)",
        "return sum_over_samples(differences)",
        COUPLINGS,
    ),
    Mutant(
        "estimators/couplings.py",
        "mirrored = 1 - type(q)(logits=-q.logits).sample(noise)",
        "mirrored = 1 - q.sample(noise)",
        COUPLINGS,
    ),
    Mutant(
        "estimators/couplings.py",
        "return (1 - rarer) / (1 - both_given_one)",
        "return 1 / (1 - both_given_one)",
        COUPLINGS,
    ),
    Mutant("estimators/couplings.py", "rare == (q.logits < 0)", "rare == (q.logits >= 0)", COUPLINGS),
    Mutant(
        "estimators/couplings.py",
        "* self.independence(q, x.shape[0])",
        "* self.independence(q, x.shape[0]) ** 2",
        COUPLINGS,
    ),
    # Relaxations.
    Mutant("estimators/concrete.py", "q.xp.log1p(-u) - q.xp.log(u)", "q.xp.log(u) - q.xp.log1p(-u)", CONCRETE),
    Mutant(
        "estimators/concrete.py", "softplus(t * location) + t * standard", "softplus(t * location) + standard", CONCRETE
    ),
    Mutant("estimators/concrete.py", "largest - (1 - x) * softplus", "largest - softplus", CONCRETE),
    Mutant("estimators/concrete.py", "q.with_logits(z / temperature)", "q.with_logits(z * temperature)", CONCRETE),
    Mutant("estimators/relaxed.py", "score_part + _reparameterized_gradient(evaluation)", "score_part", CONCRETE),
    Mutant(
        "estimators/relaxed.py",
        "dcontrol[:samples] - evaluation.dcontrol[samples:]",
        "dcontrol[samples:] - evaluation.dcontrol[:samples]",
        CONCRETE,
    ),
    Mutant(
        "estimators/relaxed.py",
        "(values + self._network(q, z, numbers, context))",
        "(values + 0 * self._network(q, z, numbers, context))",
        RELAX,
    ),
    Mutant("estimators/relaxed.py", "hidden, NEGATIVE_SLOPE * hidden", "hidden, 0 * hidden", RELAX),
    # Stein operator and surrogate.
    Mutant("estimators/stein.py", "q.dot(probability, change) / q.event_shape[0]", "q.dot(probability, change)", STEIN),
    Mutant("estimators/stein.py", "own = -q.score(x) * h.neighbors", "own = q.score(x) * h.neighbors", STEIN),
    Mutant("estimators/stein.py", "baseline = leave_one_out(f + stein)", "baseline = leave_one_out(f) + stein", STEIN),
    Mutant("estimators/stein.py", "range(1, self.samples)", "range(2, self.samples)", STEIN),
    Mutant(
        "estimators/surrogate.py",
        "gradient = base.gradient + exact",
        "gradient = base.gradient - exact",
        SURROGATE,
    ),
    Mutant(
        "estimators/surrogate.py",
        '{"factor": -exact}',
        '{"factor": exact}',
        "tests/estimators/test_surrogate_factor.py",
    ),
    Mutant(
        "estimators/surrogate.py",
        "xp.where(has_fallen(judged.averages), xp.zeros_like(factor), factor)",
        "factor",
        "tests/estimators/test_surrogate_factor.py -k left_out_at",
    ),
    Mutant("estimators/surrogate.py", "slope + across - diagonal * score\n", "slope + across\n", SURROGATE),
    Mutant(
        "estimators/surrogate.py",
        "xp.where(counts, -2 / max(1, K - 1) * weight * centered, none)",
        "-2 / max(1, K - 1) * centered",
        SURROGATE,
    ),
    # The JAX front-end.
    Mutant(
        "jax/rule.py",
        "of_logits = masked(q, weight, gradient)",
        "of_logits = masked(q, jnp.abs(weight), gradient)",
        JAX,
    ),
    Mutant(
        "jax/rule.py",
        "jnp.broadcast_to(weight / values.shape[0], values.shape)",
        "jnp.broadcast_to(weight, values.shape)",
        JAX,
    ),
    Mutant(
        "jax/rule.py", "values.shape[0] / jnp.where(counts, weight, 1), 0)", "1 / jnp.where(counts, weight, 1), 0)", JAX
    ),
    Mutant(
        "jax/rule.py", "return (2 / max(1, event_size(q)) * masked", "return (-2 / max(1, event_size(q)) * masked", JAX
    ),
    Mutant("jax/rule.py", "(2 * masked(q, weight, pushed_forward))", "(masked(q, weight, pushed_forward))", JAX),
    Mutant("jax/rule.py", "of_logits, of_learned = _differentiable_once((of_logits, of_learned))", "pass", JAX_ERRORS),
    Mutant(
        "jax/rule.py",
        "        if not self._found:\n            raise missing_gradient(estimator)",
        "        del estimator",
        JAX_ERRORS,
    ),
    Mutant(
        "jax/rule.py",
        "*_, more = f_pullback((jnp.zeros_like(values), filled))",
        "*_, more = f_pullback((of_values, filled))",
        JAX_AUX,
    ),
    Mutant(
        "jax/expectation.py",
        "averages = self.estimator.advance(learned.averages, gradients.statistics)",
        "averages = learned.averages",
        JAX,
    ),
    Mutant("jax/expectation.py", "1 / max(1, prod(q.batch_shape))", "1", EQUALITY),
    # The PyTorch front-end.
    Mutant(
        "torch/nodes.py",
        "cotangent = (weight / values.shape[0]).expand(values.shape)",
        "cotangent = weight.expand(values.shape)",
        EQUALITY,
    ),
    Mutant(
        "torch/nodes.py",
        "of_logits = masked(q, weight, gradient).to",
        "of_logits = masked(q, weight.abs(), gradient).to",
        EQUALITY,
    ),
    Mutant(
        "torch/nodes.py",
        "scale = torch.where(counts, samples.shape[0] / weight, 0)",
        "scale = torch.where(counts, 1 / weight, 0)",
        TORCH_SMALL,
    ),
    Mutant("torch/small.py", "step.fixed.tolist()", "step.fixed.abs().tolist()", TORCH_STATE),
    Mutant("torch/nodes.py", "step.fixed.unbind()", "step.fixed.abs().unbind()", TORCH_STATE),
    Mutant("torch/small.py", "df = q.scale(K / weight, df)", "df = q.scale(1 / weight, df)", EQUALITY),
    Mutant(
        "torch/nodes.py",
        "return 2 / max(1, event_size(q)) * masked",
        "return -2 / max(1, event_size(q)) * masked",
        EQUALITY,
    ),
    Mutant("torch/nodes.py", "total, rule.excess = total - rule.excess, None", "rule.excess = None", TORCH_AUX),
    Mutant("torch/nodes.py", "        if torch.is_grad_enabled():", "        if False:", TORCH_ERRORS),
    Mutant("torch/nodes.py", "        raise missing_gradient(rule.estimator)", "        return total", TORCH_ERRORS),
    # Checkpoints.
    Mutant(
        "lab/train/checkpoint.py",
        "expected {description['state_sha256'][:12]}...\")",
        "expected {description['state_sha256'][:12]}...\") if False else None",
        CHECKPOINT,
    ),
    Mutant(
        "lab/train/checkpoint.py",
        '        if (given := description["identity"].get(name)) != wanted:',
        '        if (given := description["identity"].get(name)) is None:',
        CHECKPOINT,
    ),
    Mutant("lab/train/checkpoint.py", "for old in paths(folder)[KEPT:]:", "for old in paths(folder)[1:]:", CHECKPOINT),
    Mutant(
        "lab/train/checkpoint.py",
        "key=lambda path: (len(path.name), path.name), reverse=True)",
        "key=lambda path: (len(path.name), path.name))",
        CHECKPOINT,
    ),
    Mutant(
        "lab/common/records.py",
        "    if given != (computed := _document_checksum(found)):",
        "    if (computed := _document_checksum(found)) is None:",
        RECORDS,
    ),
    Mutant("lab/train/checkpoint.py", "DESCRIPTION, sealed=True)", "DESCRIPTION)", CHECKPOINT),
    Mutant("lab/train/checkpoint.py", "    if sorted(description) != FIELDS:", "    if not description:", CHECKPOINT),
    Mutant("lab/train/checkpoint.py", "array is None or array.shape != leaf.shape or", "array is None or", CHECKPOINT),
    Mutant(
        "lab/train/checkpoint.py",
        '    if path != path_of(path.parent, description["step"]):',
        "    if False:",
        CHECKPOINT,
    ),
    Mutant(
        "lab/train/checkpoint.py",
        "    except OSError:\n        remove(partial)\n        raise",
        "    except OSError:\n        raise",
        CHECKPOINT,
    ),
    Mutant("lab/common/files.py", "        partial.replace(path)\n", "        path.write_bytes(content)\n", FILES),
    Mutant("lab/common/files.py", 'or ".." in parts.parts', "", FILES),
    Mutant("lab/common/files.py", "        if path.is_symlink():", "        if False:", FILES),
    Mutant("estimators/stein.py", "covariance_product(df_j)), 0, None)", "covariance_product(df_j)), -1, None)", STEIN),
    # Batch elements that do not count, narrow types, samples that f kept.
    Mutant("jax/rule.py", "jnp.sum(only_where(counts, derivative))", "jnp.sum(derivative)", MASKED),
    Mutant("jax/rule.py", "return jnp.ldexp(jnp.ones_like(size), exponent - 1)", "return jnp.ones_like(size)", NARROW),
    Mutant("jax/rule.py", "number + unit * _total(", "number + _total(", EQUALITY),
    Mutant("torch/nodes.py", "only_where(weight != 0, derivative).sum()", "derivative.sum()", MASKED),
    Mutant(
        "torch/nodes.py",
        "return torch.ldexp(torch.ones_like(size), exponent - 1)",
        "return torch.ones_like(size)",
        NARROW,
    ),
    Mutant("torch/nodes.py", "[unit * derivative for derivative", "[1 * derivative for derivative", EQUALITY),
    Mutant("torch/evaluating.py", "new - old > sum(", "new - old > 1 + sum(", TORCH_AUX),
    Mutant("torch/expectation.py", "rule.check = scheduled or", "rule.check = scheduled and", TORCH_AUX),
    Mutant("torch/expectation.py", "rule.check = scheduled or", "rule.check =", TORCH_AUX),
    Mutant("torch/expectation.py", " and argument._version == version", "", TORCH_AUX),
    # Files of a run.
    Mutant("lab/report/collect.py", ".st_size) < wanted:", ".st_size) < 0:", DAMAGE),
    Mutant("lab/sweep/plan.py", "            read_fields(self.folder /", "            open(self.folder /", DAMAGE),
]
