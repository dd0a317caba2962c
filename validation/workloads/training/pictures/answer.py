"""One of timm's models asked for batch after batch of pictures, in fp16, on one GPU."""

import argparse
import time

import timm
import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    model = timm.create_model(args.model).to("cuda", memory_format=layout).eval()
    images = torch.randn(args.batch, 3, args.size, args.size, device="cuda")
    images = images.to(memory_format=layout)
    with torch.inference_mode():
        for _ in range(args.steps):
            start = time.perf_counter()
            with torch.autocast("cuda", dtype=torch.float16):
                model(images)
            torch.cuda.synchronize()
    print(f"{args.batch / (time.perf_counter() - start):.1f} images/s")


if __name__ == "__main__":
    main()
