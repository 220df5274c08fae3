"""What buys speed, and what shows where time goes."""
import harness

CONV = harness.layers(("Conv2d", {"in_channels": 1, "out_channels": 32, "kernel_size": 3, "padding": 1}), ("ReLU", {}),
                      ("Conv2d", {"in_channels": 32, "out_channels": 32, "kernel_size": 3, "padding": 1}), ("ReLU", {}),
                      ("Flatten", {}), ("Linear", {"in_features": 25088, "out_features": 10}))


def test_speed_workspace_goes_before_the_run_does(snug):
    """A budget between the plan with Winograd's scratch and the one without is met, and it is said."""
    graph = snug.example("resnet18-cifar")
    plain = snug.json("plan", graph)
    least = snug.json("plan", graph, "--memory-gib", "0.001")
    assert plain.rc == 0 and least.rc == 3, (plain, least)
    peak = plain.doc["peak_bytes"]
    workspace = plain.doc["by_category"]["workspace"]
    if workspace < 64 << 20:
        raise harness.Skip("no faster convolutions here")
    tight = snug.json("plan", graph, "--memory-gib", repr((peak - (16 << 20)) / 2**30))
    assert tight.rc == 0, tight
    assert tight.doc["peak_bytes"] <= peak - (16 << 20), (tight.doc["peak_bytes"], peak)
    assert tight.doc["by_category"]["workspace"] < workspace


def test_profile_names_operators_and_nodes(snug):
    harness.need_fashion()
    graph = snug.write("g.json", harness.training_graph(model=CONV, train__max_steps=3))
    text = snug("run", graph, "--profile")
    assert text.rc == 0 and "conv_wgrad" in text.out and "model/l2" in text.out, text
    profile = snug.json("run", graph, "--profile").doc["profile"]
    assert profile, profile
    assert "profile" not in snug.json("run", graph).doc
