"""Every fast way of sampling and scoring against the plain one: the same tokens, log-probabilities
equal but for rounding."""
from unittest.mock import patch
import pytest
import torch
from rookworld_nb.chess.dataset import load_rows
from rookworld_nb.fast import generate as fast
from rookworld_nb.fast.device import FixedDecoder, set_numbers
from rookworld_nb.fast.drafts import Drafts
from rookworld_nb.fast.generate import completion_logits, concat_rollouts, generate, sampling_logits
from rookworld_nb.lm.loader import load_model
from rookworld_nb.lm.plain import SamplingParams, gap_to_plain, plain_logprobs, plain_sample

MODEL, TOKENIZER = load_model('nano')
# of P, of A
ROWS = [next(iter(load_rows('positions', env_ratio, 0, 'eval', 1))) for env_ratio in (0., 1.)]
# of both tasks, three lengths
PROMPTS = [ROWS[0].prompt(), ROWS[1].prompt(), ROWS[1].prompt()[:-3]]
# a draft that is missing, one that is true, one that is nonsense
TRUTHS = [None, ROWS[1].completion(), 'ä']
G, NEAR = 2, 1e-4
HOW = {
    'default': dict(max_new_tokens=24),
    # limits below and above max_new_tokens: these go on in the next blocks of numbers
    'all at once': dict(max_new_tokens=16, temperature=[0.7, 1.3, 0], top_k=[9, 0, 3],
                        top_p=[1, 0.95, 0.5], limits=[24, 45, 7]),
    'task': dict(max_new_tokens=24, temperature=1.5, top_k=40, top_p=0.98,
                 vocabulary=TOKENIZER.answer_ids)
}


@pytest.fixture(scope='module', params=HOW)
def case(request):
    """Settings, and what plain sampling gives; every text goes through the model once for each of
    its tokens."""
    how = dict(seed=3) | HOW[request.param]
    return how, plain_sample(MODEL, TOKENIZER, PROMPTS, G, SamplingParams(**how))


def sampled(how, **more): return generate(MODEL, TOKENIZER, PROMPTS, G, **how, **more)


@pytest.fixture
def cores():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def fixed_shapes():
    set_numbers(MODEL, fixed_shapes=True)
    yield
    set_numbers(MODEL)


def test_tree(case, cores):
    cores(1)
    assert gap_to_plain(sampled(case[0]), case[1]) < NEAR


def test_halves(case, cores):
    cores(2)
    with patch.object(fast, 'in_halves', side_effect=fast.in_halves) as halves:
        found = sampled(case[0])
    assert halves.call_count == 1 and gap_to_plain(found, case[1]) < NEAR


def test_fixed_shapes(case, fixed_shapes):
    with patch.object(FixedDecoder, 'advance', autospec=True,
                      side_effect=FixedDecoder.advance) as steps:
        found = sampled(case[0])
    assert steps.call_count and gap_to_plain(found, case[1]) < NEAR


@pytest.mark.parametrize('texts', ['truths', 'own'])
def test_drafts(case, texts, cores):
    "Drafts that are mostly wrong, and those that each prompt's first completion turned out to be."
    cores(1)
    how, plain = case
    own = [plain[p*G].text for p in range(len(PROMPTS))]
    with patch.object(Drafts, 'sample', autospec=True, side_effect=Drafts.sample) as asked:
        found = sampled(how, drafts=Drafts.of(TOKENIZER, TRUTHS if texts == 'truths' else own))
    assert asked.call_count and gap_to_plain(found, plain) < NEAR


@pytest.mark.parametrize('temperature', [0, 1.])
def test_drafts_that_are_left(temperature, cores):
    """Without groups: half of each answer as its draft, or all with another character; then each
    row goes on alone."""
    cores(1)
    how = dict(max_new_tokens=45, temperature=temperature, seed=3)
    plain = plain_sample(MODEL, TOKENIZER, PROMPTS[:2], 1, SamplingParams(**how))
    for texts in ([a.text[:len(a.text)//2] for a in plain], [a.text.replace('1', '2', 1) for a in plain]):
        assert gap_to_plain(
            generate(MODEL, TOKENIZER, PROMPTS[:2], **how, drafts=Drafts.of(TOKENIZER, texts)),
            plain) < NEAR


def test_a_part_of_a_batch(case):
    "Prompts that know their places, as a rank asks for them, and joined again."
    how, plain = case
    some = {name: [x[2], x[0]] if isinstance(x, list) else x for name, x in how.items()}
    asked, some = [PROMPTS[2], PROMPTS[0]], some | dict(places=[2, 0])
    part = generate(MODEL, TOKENIZER, asked, G, **some)
    assert gap_to_plain(part, plain[2*G:] + plain[:G]) < NEAR
    assert gap_to_plain(part, plain_sample(MODEL, TOKENIZER, asked, G, SamplingParams(**some))) < NEAR
    assert gap_to_plain(concat_rollouts([part, sampled(how)]).select([1, 3, 0]), plain) < NEAR


def test_packed(case):
    """Log-probabilities and their gradient: all completions in one row, each prompt once, and one
    text after the other."""
    how, plain = case
    r = sampled(how)
    weights = torch.linspace(-1, 1, len(plain))

    def gradient(found):
        MODEL.zero_grad()
        sum(w*row.sum() for w, row in zip(weights, found)).backward()
        return torch.cat([p.grad.flatten() for p in MODEL.parameters()])

    packed = sampling_logits(completion_logits(MODEL, r),
                             r).log_softmax(-1).gather(-1, r.places[..., None])[..., 0]
    packed = [row[mask] for row, mask in zip(packed, r.completion_mask)]
    settings = SamplingParams(**how).each(len(PROMPTS))
    slow = [
        plain_logprobs(MODEL, TOKENIZER, PROMPTS[i // G], a.ids, settings[i // G])
        for i, a in enumerate(plain)
    ]
    for mine, theirs, a in zip(packed, slow, plain):
        assert (mine - theirs).abs().max() < NEAR and (theirs - a.logprobs).abs().max() < NEAR
    mine, theirs = gradient(packed), gradient(slow)
    MODEL.zero_grad()
    assert (mine - theirs).norm() < 1e-4*theirs.norm()
