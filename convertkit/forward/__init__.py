"""What a drafter computes: its forward pass in torch, on two checkpoints side by side. Imported only by the verbs that
run it."""
