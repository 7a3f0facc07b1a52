"""The net: both ways through it agree, and it computes what the families' own code computes."""

import pytest
from tests.torch_kit import make_net, torch

from ludus.rl.policy_net import add_lora, list_lora


def sample_ids(rows: int, places: int) -> object:
    return torch.randint(0, 97, (rows, places), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("shape", [{}, {"attention_bias": True}, {"norm_heads": True, "head_dim": 16}])
def test_decoding_agrees_with_whole_sequences(shape: dict[str, object]):
    net, ids = make_net(**shape), sample_ids(3, 20)
    with torch.no_grad():
        whole = net.lm_head(net(ids))
        cache = net.make_cache(3, 32)
        for row in range(3):
            logits, read = net.prefill(ids[row : row + 1, : 5 + row])
            assert torch.allclose(logits[0], whole[row, 4 + row], atol=1e-5)
            for own, new in zip((*cache.keys, *cache.values), (*read.keys, *read.values), strict=True):
                own[row, :, : 5 + row] = new[0]
            cache.lengths[row] = 5 + row
        for step in range(8):
            logits = net.decode(torch.stack([ids[row, 5 + row + step] for row in range(3)]), cache)
            for row in range(3):
                assert torch.allclose(logits[row], whole[row, 5 + row + step], atol=1e-4)


def test_logprobs_of_sampled_ids_and_padding():
    net, ids = make_net(), sample_ids(2, 10)
    sampled = torch.zeros(2, 10, dtype=torch.bool)
    sampled[0, 4:6] = sampled[1, 0] = sampled[1, 9] = True  # the first id has nothing before it
    with torch.no_grad():
        found, entropy = net.score_sampled(ids, sampled)
        every = torch.log_softmax(net.lm_head(net(ids)), -1)
        padded, _ = net.score_sampled(
            torch.cat((ids, torch.zeros(2, 5, dtype=torch.long)), 1),
            torch.cat((sampled, torch.zeros(2, 5, dtype=torch.bool)), 1),
        )
    wanted = [every[0, 3, ids[0, 4]], every[0, 4, ids[0, 5]], every[1, 8, ids[1, 9]]]
    assert torch.allclose(found, torch.stack(wanted), atol=1e-6)
    assert torch.allclose(found, padded, atol=1e-6)
    assert entropy[0] == pytest.approx(-(every[0, 3].exp() * every[0, 3]).sum().item(), rel=1e-4)


def test_lora_begins_at_zero_and_only_its_path_is_trained():
    net, ids = make_net(), sample_ids(1, 6)
    before = net(ids)
    add_lora(net, 4, 8.0)
    assert torch.equal(net(ids), before)
    assert len(list_lora(net)) == 2 * 7
    assert {name.split(".")[-2] for name, p in net.named_parameters() if p.requires_grad} == {"lora_A", "lora_B"}


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_the_net_computes_what_the_family_computes(family: str):
    transformers = pytest.importorskip("transformers", reason="make test-trainers installs it")
    shape = {"Llama": {}, "Qwen2": {"attention_bias": True}, "Qwen3": {"norm_heads": True, "head_dim": 16}}[family]
    net, ids = make_net(**shape), sample_ids(2, 12)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=net.shape.head_dim,
        rms_norm_eps=net.shape.rms_norm_eps,
        tie_word_embeddings=True,
    )
    peer = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    missing, unexpected = peer.load_state_dict(net.state_dict(), strict=False)
    assert not missing and not unexpected
    with torch.no_grad():
        assert torch.allclose(peer(ids).logits, net.lm_head(net(ids)), atol=1e-4)
