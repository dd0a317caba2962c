"""Speech: Whisper (small) on log-mel features, wav2vec 2.0 (base) with CTC on waveforms."""

import argparse
import time

import torch
from transformers import (
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperForConditionalGeneration,
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["whisper", "wav2vec2"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=int, default=10, help="of a waveform")
    parser.add_argument("--steps", type=int, default=25)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.model == "whisper":
        config = WhisperConfig(
            vocab_size=51865, d_model=768, encoder_layers=12, decoder_layers=12,
            encoder_attention_heads=12, decoder_attention_heads=12,
            encoder_ffn_dim=3072, decoder_ffn_dim=3072, use_cache=False,
        )  # fmt: skip
        model = WhisperForConditionalGeneration(config)
        batch = {
            "input_features": torch.randn(args.batch, 80, 3000, device=device),
            "labels": torch.randint(0, 50000, (args.batch, 128), device=device),
        }
    else:
        model = Wav2Vec2ForCTC(Wav2Vec2Config(mask_time_prob=0.0, ctc_zero_infinity=True))
        batch = {
            "input_values": torch.randn(args.batch, 16000 * args.seconds, device=device),
            "labels": torch.randint(1, 32, (args.batch, 80), device=device),
        }
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    scaler = torch.amp.GradScaler(device)
    start = time.perf_counter()
    for step in range(args.steps):
        with torch.autocast(device, dtype=torch.float16):
            loss = model(**batch).loss
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(f"loss {loss.item():.3f}, {args.steps / (time.perf_counter() - start):.2f} steps/s")


if __name__ == "__main__":
    main()
