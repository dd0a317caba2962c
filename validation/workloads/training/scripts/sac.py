"""Updates of soft actor-critic from a replay buffer on the GPU: two critics, a learnt temperature."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Critic(nn.Module):
    def __init__(self, observations, actions, width):
        super().__init__()
        self.fc1 = nn.Linear(observations + actions, width)
        self.fc2 = nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 1)

    def forward(self, x, a):
        x = F.relu(self.fc1(torch.cat([x, a], 1)))
        return self.fc3(F.relu(self.fc2(x)))


class Actor(nn.Module):
    def __init__(self, observations, actions, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(observations, width), nn.Linear(width, width)
        self.mean, self.spread = nn.Linear(width, actions), nn.Linear(width, actions)

    def act(self, x):
        x = F.relu(self.fc2(F.relu(self.fc1(x))))
        spread = torch.tanh(self.spread(x))
        normal = torch.distributions.Normal(self.mean(x), (-5 + 3.5 * (spread + 1)).exp())
        raw = normal.rsample()
        action = torch.tanh(raw)
        logp = normal.log_prob(raw) - torch.log(1 - action.pow(2) + 1e-6)
        return action, logp.sum(1, keepdim=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--updates", type=int, default=40)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    n_obs, n_act, size = 17, 6, 100_000
    obs, after = (torch.randn(size, n_obs, device=device) for _ in range(2))
    acts = torch.rand(size, n_act, device=device) * 2 - 1
    rewards, dones = torch.randn(size, device=device), torch.zeros(size, device=device)
    actor = Actor(n_obs, n_act, args.width).to(device)
    q1, q2, t1, t2 = (Critic(n_obs, n_act, args.width).to(device) for _ in range(4))
    t1.load_state_dict(q1.state_dict())
    t2.load_state_dict(q2.state_dict())
    q_opt = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=1e-3)
    a_opt = torch.optim.Adam(actor.parameters(), lr=3e-4)
    log_alpha = torch.zeros(1, requires_grad=True, device=device)
    alpha_opt = torch.optim.Adam([log_alpha], lr=1e-3)
    for update in range(args.updates):
        rows = torch.randint(0, size, (args.batch,), device=device)
        o, a, r, o2, done = obs[rows], acts[rows], rewards[rows], after[rows], dones[rows]
        alpha = log_alpha.exp().detach()
        with torch.no_grad():
            a2, logp = actor.act(o2)
            value = torch.min(t1(o2, a2), t2(o2, a2)) - alpha * logp
            target = r + (1 - done) * 0.99 * value.view(-1)
        loss = F.mse_loss(q1(o, a).view(-1), target) + F.mse_loss(q2(o, a).view(-1), target)
        q_opt.zero_grad()
        loss.backward()
        q_opt.step()
        if update % 2 == 0:
            for _ in range(2):
                action, logp = actor.act(o)
                worth = torch.min(q1(o, action), q2(o, action))
                a_loss = (alpha * logp - worth).mean()
                a_opt.zero_grad()
                a_loss.backward()
                a_opt.step()
                with torch.no_grad():
                    _, logp = actor.act(o)
                alpha_loss = (-log_alpha.exp() * (logp - n_act)).mean()
                alpha_opt.zero_grad()
                alpha_loss.backward()
                alpha_opt.step()
        for net, slow in ((q1, t1), (q2, t2)):
            for p, s in zip(net.parameters(), slow.parameters()):
                s.data.copy_(0.005 * p.data + 0.995 * s.data)
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
