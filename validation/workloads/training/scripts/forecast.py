"""Long forecasts of many series: PatchTST, each channel alone, instance norms, in fp32 or bf16."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Windows(Dataset):
    def __init__(self, channels, past, future):
        self.series = torch.randn(4_000 + past + future, channels)
        self.past, self.future = past, future

    def __len__(self):
        return 4_000

    def __getitem__(self, i):
        window = self.series[i : i + self.past + self.future]
        return window[: self.past], window[self.past :]


class Block(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=0.1, batch_first=True)
        self.norm1, self.norm2 = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(0.2), nn.Linear(hidden, width)
        )

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.norm1(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.mlp(x)
        return self.norm2(x.transpose(1, 2)).transpose(1, 2)


class PatchTST(nn.Module):
    def __init__(self, past, future, patch=16, stride=8, width=128, heads=16, depth=3):
        super().__init__()
        self.patch, self.stride = patch, stride
        count = (past - patch) // stride + 2
        self.pad = nn.ReplicationPad1d((0, stride))
        self.embed = nn.Linear(patch, width)
        self.position = nn.Parameter(torch.randn(count, width) * 0.02)
        self.drop = nn.Dropout(0.2)
        self.blocks = nn.Sequential(*[Block(width, heads, 2 * width) for _ in range(depth)])
        self.head = nn.Sequential(nn.Flatten(1), nn.Linear(count * width, future))

    def forward(self, x):
        mean = x.mean(1, keepdim=True).detach()
        scale = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        x = ((x - mean) / scale).transpose(1, 2)
        b, c, _ = x.shape
        patches = self.pad(x).unfold(-1, self.patch, self.stride).reshape(b * c, -1, self.patch)
        x = self.blocks(self.drop(self.embed(patches) + self.position))
        x = self.head(x).view(b, c, -1).transpose(1, 2)
        return x * scale + mean


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--channels", type=int, default=21)
    parser.add_argument("--past", type=int, default=336)
    parser.add_argument("--future", type=int, default=96)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = Windows(args.channels, args.past, args.future)
    loader = DataLoader(data, args.batch, shuffle=True, num_workers=4, drop_last=True)
    model = PatchTST(args.past, args.future).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for past, future in loader:
        optimizer.zero_grad()
        past, future = past.to(device), future.to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.bf16):
            loss = nn.functional.mse_loss(model(past), future)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
