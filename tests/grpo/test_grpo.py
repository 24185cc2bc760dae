"""Loss, KL and entropy against TRL's own code: the installed `GRPOTrainer._compute_loss` runs on
our tensors. Needs the `bench` extra."""
from collections import defaultdict
from types import SimpleNamespace
from unittest.mock import patch
import pytest
import torch
from rookworld_nb.grpo.grpo import aggregate_tokens, entropy, group_advantages, policy_loss, token_logprobs
from rookworld_nb.grpo.kl import kl_tokens

trl = pytest.importorskip('trl')
from trl.trainer.grpo_trainer import GRPOTrainer
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

B, T, MAX_LENGTH, BETA = 6, 7, 9, 0.3
CLIPS = {
    'grpo': (0.2, 0.28), 'bnpo': (0.2, 0.28), 'dr_grpo': (0.2, 0.28), 'dapo': (0.2, 0.28),
    'gspo': (3e-4, 4e-4), 'cispo': (1.0, 4.0)
}


@pytest.fixture
def batch():
    torch.manual_seed(0)
    old, reference = (-2*torch.rand(B, T, dtype=torch.float64) for _ in range(2))
    new = (old + 0.4*torch.randn(B, T, dtype=torch.float64)).requires_grad_()
    mask = torch.arange(T) < torch.tensor([7, 1, 4, 3, 6, 2])[:, None]
    advantages = group_advantages(torch.rand(2, 3, dtype=torch.float64)).flatten()
    return SimpleNamespace(new=new, old=old, reference=reference, mask=mask, advantages=advantages)


def of_trl(b, loss_type, beta=0., bias_correction=False):
    "The loss that TRL computes for these log-probabilities, and its gradient."
    low, high = CLIPS[loss_type]
    model = SimpleNamespace(training=False)     # in evaluation TRL divides by no accumulation steps
    trainer = SimpleNamespace(
        model=model, aux_loss_enabled=False, top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        importance_sampling_level='sequence' if loss_type == 'gspo' else 'token', beta=beta,
        loss_type='grpo' if loss_type == 'gspo' else loss_type, epsilon_low=low,
        epsilon_high=1 + high if loss_type == 'cispo' else high, use_vllm=False,
        max_completion_length=MAX_LENGTH, current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=False, _metrics=defaultdict(lambda: defaultdict(list)),
        args=SimpleNamespace(delta=None, use_bias_correction_kl=bias_correction,
                             steps_per_generation=1),
        accelerator=SimpleNamespace(num_processes=1, reduce=lambda x, reduction: x,
                                    gather=lambda x: x, gather_for_metrics=lambda x: x),
        _get_per_token_logps_and_entropies=lambda *args, **kwargs:
        (b.new, torch.zeros_like(b.new), None))
    nothing = torch.zeros(B, 0, dtype=torch.long)
    inputs = dict(prompt_ids=nothing, prompt_mask=nothing,
                  completion_ids=torch.zeros(B, T, dtype=torch.long), completion_mask=b.mask.long(),
                  advantages=b.advantages, old_per_token_logps=b.old,
                  ref_per_token_logps=b.reference, num_items_in_batch=b.mask.sum())
    loss = GRPOTrainer._compute_loss(trainer, model, inputs)
    return loss.detach(), torch.autograd.grad(loss, b.new)[0]


def of_ours(b, loss_type, beta=0., estimator='k3'):
    "The same from our functions, called as a trainer calls them."
    loss, _ = policy_loss(b.new, b.old, b.advantages, b.mask, loss_type, max_length=MAX_LENGTH)
    if beta:
        loss = (
            loss + beta*
            aggregate_tokens(kl_tokens(b.new, b.reference, estimator, b.mask, old_logprobs=b.old),
                             b.mask, loss_type, MAX_LENGTH))
    return loss.detach(), torch.autograd.grad(loss, b.new)[0]


def assert_equal(ours, theirs):
    for a, b in zip(ours, theirs): torch.testing.assert_close(a, b, rtol=0, atol=1e-9)


@pytest.mark.parametrize('loss_type', CLIPS)
def test_loss_and_gradient(batch, loss_type):
    assert_equal(of_ours(batch, loss_type), of_trl(batch, loss_type))


@pytest.mark.parametrize('loss_type', [t for t in CLIPS if t != 'gspo'])
@pytest.mark.parametrize('estimator', ['k3', 'k3_ratio'])
def test_kl(batch, loss_type, estimator):
    assert_equal(of_ours(batch, loss_type, BETA, estimator),
                 of_trl(batch, loss_type, BETA, estimator == 'k3_ratio'))


def test_difference_is_seen(batch):
    "The comparison is not vacuous: another clip gives another gradient."
    with patch.dict(CLIPS, grpo=(0.1, 0.1)): theirs = of_trl(batch, 'grpo')
    with pytest.raises(AssertionError): assert_equal(of_ours(batch, 'grpo'), theirs)


def test_logprobs_and_entropy():
    torch.manual_seed(0)
    logits, ids = torch.randn(B, T, 50, dtype=torch.float64), torch.randint(50, (B, T))
    torch.testing.assert_close(token_logprobs(logits, ids), selective_log_softmax(logits, ids),
                               rtol=0, atol=1e-9)
    torch.testing.assert_close(entropy(logits), entropy_from_logits(logits), rtol=0, atol=1e-6)
