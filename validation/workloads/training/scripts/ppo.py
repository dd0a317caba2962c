"""The updates of PPO on a buffer of rollouts: small networks, many small batches, several epochs."""

import argparse

import torch
from torch import nn
from torch.distributions import Categorical


def mlp(inputs, outputs, width):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(),
        nn.Linear(width, outputs),
    )  # fmt: skip


class Agent(nn.Module):
    def __init__(self, observations, actions, width):
        super().__init__()
        self.actor, self.critic = mlp(observations, actions, width), mlp(observations, 1, width)

    def forward(self, observations, actions):
        policy = Categorical(logits=self.actor(observations))
        return policy.log_prob(actions), policy.entropy(), self.critic(observations).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollout", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    agent = Agent(64, 8, args.width).to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    n = args.rollout
    observations = torch.randn(n, 64, device=device)
    actions = torch.randint(0, 8, (n,), device=device)
    old, advantages, returns = (torch.randn(n, device=device) for _ in range(3))
    for epoch in range(args.epochs):
        order = torch.randperm(n, device=device)
        for start in range(0, n, args.rows):
            rows = order[start : start + args.rows]
            logp, entropy, value = agent(observations[rows], actions[rows])
            ratio = (logp - old[rows]).exp()
            a = advantages[rows]
            a = (a - a.mean()) / (a.std() + 1e-8)
            gain = torch.max(-a * ratio, -a * torch.clamp(ratio, 0.8, 1.2)).mean()
            loss = gain - 0.01 * entropy.mean() + 0.25 * ((value - returns[rows]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
