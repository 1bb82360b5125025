"""The critic of PPO: what reward a hidden state promises."""

from torch import Tensor, nn


class ValueHead(nn.Module):
    """Linear, in float32, 0 everywhere at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_TD: Tensor) -> Tensor:
        """[T, D] -> [T]."""
        values_T: Tensor = self.linear(hidden_TD.float())[:, 0]
        return values_T
