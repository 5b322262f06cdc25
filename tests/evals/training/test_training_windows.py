"""The parts of the example of a training: windows (packed, mixed, PoSE), and the loss computed block by block."""

from collections import Counter

import peft
import pytest
import tiny
import torch
from training_parts import MixedWindows, PoseWindows, chunked_loss, pack

BOS, EOS = 250, 251


def rows(count, length, seed=1):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(200, (count, length), generator=generator)
    ids[:, 0] = BOS
    return [{"input_ids": row} for row in ids]


# --- packing ---


def test_windows_begin_with_bos_and_hold_every_token_once():
    documents = [list(range(100, 100 + size)) for size in (5, 1, 17, 9)]
    for eos in (EOS, None, BOS):
        stream = [x for ids in documents for x in [BOS, *ids, *([EOS] if eos == EOS else [])]]
        windows = pack(documents, 7, BOS, eos).windows
        assert (windows[:, 0] == BOS).all() and windows.shape[1] == 7
        fed, at = [], 0
        for window in windows.tolist():  # a BOS of the stream is fed as it is, and no other one is made beside it
            own = stream[at] != BOS
            fed += window[own:]
            at += 7 - own
        assert fed == stream[: len(fed)] and len(stream) - len(fed) < 7
    assert pack([[BOS, 1, 2]], 3, BOS, None).windows.tolist() == [[BOS, 1, 2]]
    assert pack([[1, 2, 3], [4, 5]], 2, None, EOS).windows.tolist() == [[1, 2], [3, EOS], [4, 5]]
    short, ids = MixedWindows(short=16, bos=BOS), torch.stack([row["input_ids"] for row in rows(3, 64)])
    assert torch.equal(short.cut(ids)[:, 1:].reshape(3, -1), ids[:, 1:61]) and (short.cut(ids)[:, 0] == BOS).all()
    assert MixedWindows(short=16).cut(ids).shape == (12, 16)


# --- mixed windows ---


def test_a_share_of_the_batches_is_cut_and_the_same_batch_always_alike():
    collate = MixedWindows(short=16, share=0.3, bos=BOS)
    shapes = [collate(rows(2, 64, seed))["input_ids"].shape[1] for seed in range(600)]
    assert {*shapes} == {16, 64} and abs(shapes.count(16) / 600 - 0.3) < 4 * (0.3 * 0.7 / 600) ** 0.5
    again = [MixedWindows(16, 0.3, BOS)(rows(2, 64, seed))["input_ids"].shape[1] for seed in range(600)]
    other = [MixedWindows(16, 0.3, BOS, seed=1)(rows(2, 64, seed))["input_ids"].shape[1] for seed in range(600)]
    assert shapes == again != other


# --- PoSE ---


def test_pose_draws_every_cut_and_shift_alike_and_reaches_every_distance():
    """The oracle is a loop over every place where a window can be cut, and every shift; both are drawn evenly."""
    window, target = 6, 16
    shifts = range(target - window + 1)
    cuts = range(1, window // 2 + 1)
    possible = Counter((*range(cut), *range(cut + skip, window + skip)) for cut in cuts for skip in shifts)
    drawn = Counter()
    for seed in range(1500):
        batch = PoseWindows(target)(rows(1, window, seed))
        drawn[tuple(batch["position_ids"][0].tolist())] += 1
        assert torch.equal(batch["input_ids"], batch["labels"]) and bool(batch["attention_mask"].all())
    assert drawn.keys() == possible.keys()
    for positions, cuts in possible.items():  # without a shift, every cut gives the same
        assert abs(drawn[positions] - 1500 * cuts / 33) < 5 * (1500 * cuts / 33) ** 0.5
    distances = {late - early for positions in drawn for n, late in enumerate(positions) for early in positions[:n]}
    assert distances == {*range(1, target)}


def test_the_second_chunk_attends_to_the_first():
    """Without the mask, transformers takes a jump in the positions for another document."""
    model, batch = tiny.llama(), PoseWindows(target=256)(rows(1, 64, seed=3))
    batch = {name: values % 61 if name == "input_ids" else values for name, values in batch.items() if name != "labels"}
    other = {**batch, "input_ids": batch["input_ids"].clone()}
    other["input_ids"][0, 0] = 5
    with torch.no_grad():
        assert not torch.allclose(model(**batch).logits[0, -1], model(**other).logits[0, -1])


# --- the loss in chunks ---


@pytest.mark.parametrize("adapted", [False, True], ids=["full", "lora"])
def test_the_loss_and_the_gradients_are_those_of_the_whole_logits(adapted):
    model = tiny.llama().train()
    model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"])) if adapted else model
    ids = torch.randint(61, (3, 40), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[0, :9] = -100
    for extra in ({}, {"num_items_in_batch": torch.tensor(77)}):
        model.zero_grad()
        whole = model(input_ids=ids, labels=labels, **extra).loss
        whole.backward()
        wanted = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
        model.zero_grad()
        with chunked_loss(model, 4 * 61 * 7):  # 7 rows at a time
            found = model(input_ids=ids, labels=labels, **extra)
            found.loss.backward()
        assert found.logits is None and found.loss.item() == pytest.approx(whole.item(), rel=1e-6)
        grads = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        assert grads.keys() == wanted.keys()
        assert all((grads[name] - wanted[name]).norm() <= 1e-6 * wanted[name].norm() for name in wanted)


def test_the_largest_tensor_does_not_grow_with_the_vocabulary():
    """No tensor of ``length x vocabulary`` is made: the head is given 7 rows at most."""
    model, seen = tiny.llama().train(), []
    model.lm_head.register_forward_hook(lambda module, args, out: seen.append(out.shape[-2]))
    ids = torch.zeros(2, 50, dtype=torch.int64)
    with chunked_loss(model, 4 * 61 * 7):
        model(input_ids=ids, labels=ids).loss.backward()
    assert max(seen) == 7 and "forward" not in vars(model)
    wanted = model.eval()(input_ids=ids, labels=ids).logits
    with chunked_loss(model):  # evaluation is as it was
        assert torch.equal(model(input_ids=ids, labels=ids).logits, wanted) and seen[-1] == 50
