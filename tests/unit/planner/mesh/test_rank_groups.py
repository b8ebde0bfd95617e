"""Groups of ranks, written out by hand for splits that one can draw."""

from __future__ import annotations

from planner.mesh.rank_groups import device_mesh, rank_groups


def test_sixteen_ranks_of_two_each() -> None:
    """tp 2 is fastest, then cp 2, dp 2 and pp 2: rank = tp + 2 cp + 4 dp + 8 pp."""
    found = rank_groups({"tp": 2, "cp": 2, "dp": 2, "pp": 2, "zero": 0}, has_experts=False)
    assert list(found) == ["tp", "cp", "dp", "pp", "dp_cp"]
    assert found["tp"].members().tolist() == [[n, n + 1] for n in range(0, 16, 2)]
    assert found["cp"].members().tolist() == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert found["dp"].members().tolist() == [[n, n + 4] for n in (0, 1, 2, 3, 8, 9, 10, 11)]
    assert found["pp"].members().tolist() == [[n, n + 8] for n in range(8)]
    assert found["dp_cp"].members().tolist() == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    assert found["cp"].group_of(13) == [13, 15]
    assert found["dp_cp"].group_of(10) == [8, 10, 12, 14]


def test_experts_regroup_the_ranks_of_a_stage() -> None:
    """A stage of 8 ranks (tp 2, dp 4) as etp 1, ep 4, edp 2: four neighbours hold all experts, once more four ranks on."""
    found = rank_groups({"tp": 2, "cp": 1, "dp": 4, "pp": 2, "zero": 0, "etp": 1, "ep": 4}, has_experts=True)
    assert found["ep"].members().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert found["edp"].group_of(9) == [9, 13]
    assert found["etp"].size == 1


def test_state_is_sharded_over_neighbours_and_kept_once_more_elsewhere() -> None:
    """tp 2, dp 8, shards over 4: ranks 0, 2, 4, 6 share a copy, and 0 and 8 hold the same shard."""
    split = {"tp": 2, "cp": 1, "dp": 8, "pp": 1, "zero": 3, "zero_shard_size": 4, "zero_param_shard_size": 2}
    found = rank_groups(split, has_experts=False)
    assert found["zero_shard"].group_of(0) == [0, 2, 4, 6]
    assert found["zero_replica"].group_of(0) == [0, 8]
    assert found["param_shard"].group_of(13) == [13, 15]
    assert "zero_shard" not in rank_groups({**split, "zero": 0}, has_experts=False)
    assert "zero_replica" not in rank_groups({**split, "zero_shard_size": 8}, has_experts=False)


def test_experts_state_has_as_many_copies_as_the_rest() -> None:
    """dp 8 in shards of 4 are 2 copies, so the 4 ranks with the same experts are cut into 2 shards of 2 copies."""
    split = {"tp": 1, "cp": 1, "dp": 8, "pp": 1, "zero": 1, "zero_shard_size": 4, "etp": 1, "ep": 2}
    found = rank_groups(split, has_experts=True)
    assert found["edp"].group_of(0) == [0, 2, 4, 6]
    assert found["expert_shard"].group_of(0) == [0, 2]
    assert found["expert_replica"].group_of(0) == [0, 4]


def test_every_rank_is_in_one_group_of_each_kind() -> None:
    split = {"tp": 3, "cp": 2, "dp": 5, "pp": 4, "zero": 1, "zero_shard_size": 2, "etp": 1, "ep": 6}
    for kind in rank_groups(split, has_experts=True).values():
        members = kind.members()
        assert sorted(members.ravel().tolist()) == list(range(120)), kind
        assert all(kind.group_of(rank) == group for group in members.tolist() for rank in group)


def test_axes_of_a_device_mesh() -> None:
    split = {"tp": 2, "cp": 2, "dp": 8, "pp": 2, "zero": 3, "zero_shard_size": 8}
    assert device_mesh(split) == {"pp": 2, "dp_replicate": 2, "dp_shard": 4, "cp": 2, "tp": 2}
    assert device_mesh({**split, "zero": 0}) == {"pp": 2, "dp_replicate": 8, "dp_shard": 1, "cp": 2, "tp": 2}
    assert device_mesh({**split, "zero_shard_size": 1}) is None
