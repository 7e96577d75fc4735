#!/usr/bin/env python3
"""Measure PyTorch (1.13 .. 2.x) on the work configurations; one JSON line per measurement.

  peer_torch.py train  --config W1,W2,W3,W3L,G124,R1,R1L,C1 [--attn manual|baddbmm|sdpa] [--modes eager,default,reduce-overhead]
  peer_torch.py decode --config W2|W3 --batch 1|8 [--mv]
  peer_torch.py attn   --T 256|1024|4096 [--attn manual|baddbmm|sdpa]
  peer_torch.py profile --config ...       (torch.profiler, self CPU time by operator)
  peer_torch.py startup                    (import + first W1 step)

Every line carries median, min and quartiles of wall time, CPU seconds per wall
second of this process, and the CPU share that OTHER processes took meanwhile
(`others`, in cores): discard lines where that is high.

On a GPU (--device cuda) `train` and `attn` take the median of 5 rounds; a round is 50 whole steps between two events,
with no synchronisation inside. --dtype bfloat16 trains under autocast. TF32 is off, PyTorch's default.
"""
import time
T_PROC = time.perf_counter()
import argparse, json, math, os, resource, sys

ap = argparse.ArgumentParser()
ap.add_argument("what", choices=["train", "decode", "attn", "profile", "startup"])
ap.add_argument("--config", default="W1", help="one, or several with commas for train")
ap.add_argument("--attn", default="auto", choices=["auto", "manual", "baddbmm", "sdpa"])
ap.add_argument("--threads", type=int, default=2)
ap.add_argument("--steps", type=int, default=0, help="measured steps (0: fill --seconds)")
ap.add_argument("--seconds", type=float, default=12.0)
ap.add_argument("--warmup", type=int, default=2)
ap.add_argument("--untied", action="store_true", help="own output head instead of the token table")
ap.add_argument("--opt", default="foreach", choices=["loop", "foreach", "fused"])
ap.add_argument("--compile", action="store_true", help="torch.compile (2.x only); short for --modes default")
ap.add_argument("--modes", default="", help="eager, or a mode of torch.compile; several with commas")
ap.add_argument("--device", default="cpu")
ap.add_argument("--dtype", default="float32")
ap.add_argument("--batch", type=int, default=0)
ap.add_argument("--T", type=int, default=0)
ap.add_argument("--heads", type=int, default=8, help="of attn")
ap.add_argument("--prompt", type=int, default=32)
ap.add_argument("--new", type=int, default=128)
ap.add_argument("--mv", action="store_true", help="decode at batch 1 with matrix-vector products")
ap.add_argument("--fwd-only", action="store_true")
ap.add_argument("--tag", default="")
args = ap.parse_args()

t0 = time.perf_counter()
import torch
import torch.nn as nn
import torch.nn.functional as F
T_IMPORT = time.perf_counter() - t0

torch.set_num_threads(args.threads)
torch.manual_seed(1)
DEV = torch.device(args.device)
CUDA = DEV.type == "cuda"
HAS_SDPA = hasattr(F, "scaled_dot_product_attention")
if args.attn == "auto":
    args.attn = "sdpa" if HAS_SDPA else "baddbmm"
if args.attn == "sdpa" and not HAS_SDPA:
    sys.exit("this torch has no scaled_dot_product_attention")

#          vocab  T    D    L   H   batch
GPT = {
    "W1":  (65,    64,  128, 4,  4,  12),
    "W2":  (512,   256, 384, 6,  6,  8),
    "W3":  (50257, 64,  768, 12, 12, 4),
    "W3L": (50257, 256, 768, 12, 12, 4),
    "G124": (50257, 1024, 768, 12, 12, 8),
}
PAD = 0


def sync():
    if CUDA:
        torch.cuda.synchronize()


def stat():
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    busy = v[0] + v[1] + v[2] + v[5] + v[6] + v[7]      # user nice system irq softirq steal
    t = os.times()
    return busy / os.sysconf("SC_CLK_TCK"), t.user + t.system, time.perf_counter()


def others(a, b):
    return round(((b[0] - a[0]) - (b[1] - a[1])) / (b[2] - a[2]), 2)


def quant(v, q):
    v = sorted(v)
    return v[min(len(v) - 1, int(q * len(v)))]


def summary(v):
    return dict(median_ms=round(quant(v, .5) * 1e3, 3), min_ms=round(min(v) * 1e3, 3),
                p25_ms=round(quant(v, .25) * 1e3, 3), p75_ms=round(quant(v, .75) * 1e3, 3), n=len(v))


def rss_mb():
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def attention_backend(q, k, v):
    """The name of the kernel that PyTorch would choose."""
    if args.attn != "sdpa":
        return args.attn
    try:
        from torch.nn.attention import SDPBackend
        choice = torch._fused_sdp_choice(q, k, v, is_causal=True)
        return next((name for name, value in SDPBackend.__members__.items() if int(value) == choice), str(choice))
    except Exception as error:
        return "unknown: %s" % error


def gpu_rounds(step, rounds=5, steps=50):
    """Seconds of one step in each round, by the GPU's own clock; nothing waits within a round."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start.record()
        for _ in range(steps):
            step()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / steps)
    return times


def gpu_facts():
    return dict(gpu=torch.cuda.get_device_name(), cuda=torch.version.cuda, steps_a_round=50,
                matmul_precision=torch.get_float32_matmul_precision(),
                peak_mb=round(torch.cuda.max_memory_allocated() / 2**20, 1))


def emit(**kw):
    base = dict(peer="pytorch", dtype=args.dtype, version=torch.__version__, what=args.what, threads=args.threads,
                device=args.device, coretype=os.environ.get("OPENBLAS_CORETYPE", "auto"), tag=args.tag)
    base.update(kw)
    print(json.dumps(base), flush=True)


# ---------------------------------------------------------------- models
_masks = {}


def causal_attention(q, k, v, kind):
    """q k v: [B,H,T,d]"""
    B, H, T, d = q.shape
    s = 1.0 / math.sqrt(d)
    if kind == "sdpa":
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if kind == "manual":                      # nanoGPT's 'slow attention'
        m = _masks.get(("b", T))
        if m is None:
            m = _masks[("b", T)] = torch.tril(torch.ones(T, T, device=q.device)).view(1, 1, T, T)
        att = (q @ k.transpose(-2, -1)) * s
        att = att.masked_fill(m == 0, float("-inf"))
        return F.softmax(att, dim=-1) @ v
    m = _masks.get(("a", T))
    if m is None:
        m = _masks[("a", T)] = torch.full((T, T), float("-inf"), device=q.device, dtype=q.dtype).triu(1)
    att = torch.baddbmm(m.expand(B * H, T, T), q.reshape(B * H, T, d), k.reshape(B * H, T, d).transpose(1, 2), alpha=s)
    return torch.bmm(F.softmax(att, dim=-1), v.reshape(B * H, T, d)).view(B, H, T, d)


class Block(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.fc, self.fc2 = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.H, D // self.H).permute(2, 0, 3, 1, 4).unbind(0)
        y = causal_attention(q, k, v, args.attn).transpose(1, 2).reshape(B, T, D)
        x = x + self.proj(y)
        return x + self.fc2(F.gelu(self.fc(self.ln2(x))))


class GPTModel(nn.Module):
    def __init__(self, V, T, D, L, H, tied=True):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(Block(D, H) for _ in range(L))
        self.lnf, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)
        if tied:
            self.head.weight = self.tok.weight

    def forward(self, idx, tgt):
        x = self.tok(idx) + self.pos.weight[: idx.shape[1]]
        for b in self.blocks:
            x = b(x)
        lg = self.head(self.lnf(x))
        return F.cross_entropy(lg.view(-1, lg.shape[-1]), tgt.view(-1), ignore_index=PAD)


class RecurrentLM(nn.Module):
    def __init__(self, kind, V=65, D=256):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.rnn = (nn.RNN if kind == "rnn" else nn.LSTM)(D, D, batch_first=True)
        self.head = nn.Linear(D, V)

    def forward(self, idx, tgt):
        h, _ = self.rnn(self.tok(idx))
        lg = self.head(h)
        return F.cross_entropy(lg.reshape(-1, lg.shape[-1]), tgt.view(-1), ignore_index=PAD)


class ConvLM(nn.Module):
    """6 layers of x + gelu(causal conv k=3)"""
    def __init__(self, V=65, D=256, L=6, K=3):
        super().__init__()
        self.K, self.tok = K, nn.Embedding(V, D)
        self.convs = nn.ModuleList(nn.Conv1d(D, D, K) for _ in range(L))
        self.head = nn.Linear(D, V)

    def forward(self, idx, tgt):
        x = self.tok(idx).transpose(1, 2).contiguous()
        for c in self.convs:
            x = x + F.gelu(c(F.pad(x, (self.K - 1, 0))))
        lg = self.head(x.transpose(1, 2))
        return F.cross_entropy(lg.reshape(-1, lg.shape[-1]), tgt.view(-1), ignore_index=PAD)


def build(cfg):
    if cfg in GPT:
        V, T, D, L, H, B = GPT[cfg]
        B = args.batch or B
        m = GPTModel(V, T, D, L, H, tied=not args.untied)
    elif cfg in ("R1", "R1L"):
        V, T, B = 65, 128, args.batch or 16
        m = RecurrentLM("rnn" if cfg == "R1" else "lstm")
    elif cfg == "C1":
        V, T, B = 65, 256, args.batch or 16
        m = ConvLM()
    else:
        sys.exit("unknown config " + cfg)
    m = m.to(DEV)
    idx = torch.randint(1, V, (B, T + 1))
    idx[:, -max(1, T // 16):] = PAD                 # the last 1/16 of every row is padding
    return m, idx[:, :-1].contiguous().to(DEV), idx[:, 1:].contiguous().to(DEV), B * T


def make_opt(m):
    kw = dict(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    if args.opt == "fused":
        return torch.optim.AdamW(m.parameters(), fused=True, **kw)
    return torch.optim.AdamW(m.parameters(), foreach=args.opt == "foreach", **kw)


def one_step(m, opt, x, y, t=None, sync=sync):
    c = time.perf_counter
    a = c()
    if args.dtype == "bfloat16":                       # autocast: bf16 products, float32 weights
        with torch.autocast(DEV.type if hasattr(DEV, "type") else str(DEV).split(":")[0], dtype=torch.bfloat16):
            loss = m(x, y)
    else:
        loss = m(x, y)
    sync(); b = c()
    loss.backward(); sync(); d = c()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0); sync(); e = c()
    opt.step(); opt.zero_grad(set_to_none=True); sync(); f = c()
    if t is not None:
        for k, v in (("fwd", b - a), ("bwd", d - b), ("clip", e - d), ("opt", f - e), ("step", f - a)):
            t[k].append(v)
    return loss


def train():
    for config in args.config.split(","):
        for mode in (args.modes or ("default" if args.compile else "eager")).split(","):
            train_one(config, mode)


def train_one(config, mode):
    torch.manual_seed(1)
    m, x, y, ntok = build(config)
    opt = make_opt(m)
    n = sum(p.numel() for p in m.parameters())
    f = m
    if mode != "eager":
        torch._dynamo.reset()                # nothing compiled for another configuration
        f = torch.compile(m, mode=mode)
    begin = time.perf_counter()
    for _ in range(max(args.warmup, 10) if CUDA else args.warmup):
        loss = one_step(f, opt, x, y)
    facts = dict(config=config, compile_mode=mode, attn=args.attn, attention_backend=backend_of(config), opt=args.opt,
                 tied=not args.untied, params=n, tokens=ntok, loss=round(loss.item(), 4),
                 warmup_s=round(time.perf_counter() - begin, 2))
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
        times = gpu_rounds(lambda: one_step(f, opt, x, y, sync=lambda: None))
        emit(**facts, **summary(times), tok_s=round(ntok / quant(times, .5), 1), **gpu_facts())
        return
    t = {k: [] for k in ("fwd", "bwd", "clip", "opt", "step")}
    s0 = stat()
    while True:
        one_step(f, opt, x, y, t)
        if args.steps and len(t["step"]) >= args.steps:
            break
        if not args.steps and time.perf_counter() - s0[2] > args.seconds:
            break
    s1 = stat()
    med = quant(t["step"], .5)
    emit(**facts, **summary(t["step"]), tok_s=round(ntok / med, 1), tok_s_best=round(ntok / min(t["step"]), 1),
         split_ms={k: round(quant(t[k], .5) * 1e3, 3) for k in ("fwd", "bwd", "clip", "opt")},
         split_min_ms={k: round(min(t[k]) * 1e3, 3) for k in ("fwd", "bwd", "clip", "opt")},
         rss_mb=rss_mb(), cpu_per_wall=round((s1[1] - s0[1]) / (s1[2] - s0[2]), 2), others=others(s0, s1))


def backend_of(config):
    if config not in GPT:
        return None
    _, T, D, _, H, B = GPT[config]
    dtype = torch.bfloat16 if args.dtype == "bfloat16" else torch.float32
    q, k, v = (torch.zeros(args.batch or B, H, T, D // H, device=DEV, dtype=dtype, requires_grad=True) for _ in range(3))
    return attention_backend(q, k, v)


def profile():
    from torch.profiler import profile as prof, ProfilerActivity
    m, x, y, ntok = build(args.config)
    opt = make_opt(m)
    for _ in range(args.warmup + 1):
        one_step(m, opt, x, y)
    steps = args.steps or 5
    with prof(activities=[ProfilerActivity.CPU]) as p:
        a = time.perf_counter()
        for _ in range(steps):
            one_step(m, opt, x, y)
        wall = time.perf_counter() - a
    ev = sorted(p.key_averages(), key=lambda e: -e.self_cpu_time_total)
    tot = sum(e.self_cpu_time_total for e in ev)
    emit(config=args.config, attn=args.attn, wall_ms_per_step=round(wall / steps * 1e3, 3), ops_per_step=sum(e.count for e in ev) // steps,
         top=[[e.key, e.count // steps, round(e.self_cpu_time_total / steps / 1e3, 3), round(100 * e.self_cpu_time_total / tot, 1)] for e in ev[:28]])


# ---------------------------------------------------------------- decode
@torch.no_grad()
def decode():
    V, T, D, L, H, _ = GPT[args.config]
    B, P, N, d = args.batch or 1, args.prompt, args.new, D // H
    T = max(T, P + N)
    m = GPTModel(V, T, D, L, H).to(DEV).eval()
    K = [torch.zeros(B, H, T, d, device=DEV) for _ in range(L)]
    Vc = [torch.zeros(B, H, T, d, device=DEV) for _ in range(L)]
    mv = args.mv and B == 1
    sc = 1.0 / math.sqrt(d)
    wt = m.tok.weight

    def lin(x, l):
        return torch.addmv(l.bias, l.weight, x.view(-1)).view(1, 1, -1) if mv and x.shape[1] == 1 else l(x)

    def step(idx, pos):
        n = idx.shape[1]
        x = m.tok(idx) + m.pos.weight[pos:pos + n]
        for i, b in enumerate(m.blocks):
            q, k, v = lin(b.ln1(x), b.qkv).view(B, n, 3, H, d).permute(2, 0, 3, 1, 4).unbind(0)
            K[i][:, :, pos:pos + n] = k
            Vc[i][:, :, pos:pos + n] = v
            kk, vv = K[i][:, :, :pos + n], Vc[i][:, :, :pos + n]
            if n > 1:
                y = causal_attention(q, k, v, args.attn)
            else:
                y = F.softmax((q * sc) @ kk.transpose(-2, -1), -1) @ vv
            x = x + lin(y.transpose(1, 2).reshape(B, n, D), b.proj)
            x = x + lin(F.gelu(lin(b.ln2(x), b.fc)), b.fc2)
        h = m.lnf(x[:, -1])
        lg = torch.mv(wt, h.view(-1)).view(1, -1) if mv else F.linear(h, wt)
        return lg.argmax(-1, keepdim=True)

    pre, tot, per = [], [], []
    s0 = stat()
    reps = 0
    while reps < 3 or time.perf_counter() - s0[2] < args.seconds:
        idx = torch.randint(1, V, (B, P), device=DEV)
        sync(); a = time.perf_counter()
        tok = step(idx, 0); sync()
        b = time.perf_counter()
        for i in range(N - 1):
            c = time.perf_counter()
            tok = step(tok, P + i); sync()
            per.append(time.perf_counter() - c)
        e = time.perf_counter()
        pre.append(b - a); tot.append(e - b); reps += 1
        if reps == 1:                      # first round is the warm-up
            pre.clear(); tot.clear(); per.clear()
    s1 = stat()
    emit(config=args.config, batch=B, mv=mv, prompt_ms=round(quant(pre, .5) * 1e3, 2), **summary(per),
         tok_s=round(B * (N - 1) / quant(tot, .5), 1), tok_s_best=round(B / min(per), 1), rss_mb=rss_mb(),
         cpu_per_wall=round((s1[1] - s0[1]) / (s1[2] - s0[2]), 2), others=others(s0, s1))


def attn():
    B, H, d, T = args.batch or 2, args.heads, 64, args.T or 1024
    dtype = torch.bfloat16 if args.dtype == "bfloat16" else torch.float32
    q, k, v = (torch.randn(B, H, T, d, device=DEV, dtype=dtype, requires_grad=True) for _ in range(3))
    g = torch.randn(B, H, T, d, device=DEV, dtype=dtype)
    facts = dict(config="A%d" % T, batch=B, heads=H, attn=args.attn, attention_backend=attention_backend(q, k, v))
    if CUDA:
        def both():
            q.grad = k.grad = v.grad = None
            causal_attention(q, k, v, args.attn).backward(g)

        def forward():
            with torch.no_grad():
                causal_attention(q, k, v, args.attn)

        gpu_rounds(both, 1, 10)
        emit(**facts, **summary(gpu_rounds(both)), fwd_ms=round(quant(gpu_rounds(forward), .5) * 1e3, 3), **gpu_facts())
        return
    base = rss_mb()
    tf, tb, tt = [], [], []
    s0 = stat()
    for i in range(10000):
        for z in (q, k, v):
            z.grad = None
        sync(); a = time.perf_counter()
        o = causal_attention(q, k, v, args.attn); sync(); b = time.perf_counter()
        o.backward(g); sync(); c = time.perf_counter()
        if i > 0:
            tf.append(b - a); tb.append(c - b); tt.append(c - a)
        if len(tt) >= 3 and c - s0[2] > args.seconds:
            break
    s1 = stat()
    emit(**facts, **summary(tt), fwd_ms=round(quant(tf, .5) * 1e3, 3), bwd_ms=round(quant(tb, .5) * 1e3, 3),
         fwd_min_ms=round(min(tf) * 1e3, 3), bwd_min_ms=round(min(tb) * 1e3, 3), rss_base_mb=base, rss_mb=rss_mb(), extra_mb=round(rss_mb() - base, 1),
         cpu_per_wall=round((s1[1] - s0[1]) / (s1[2] - s0[2]), 2), others=others(s0, s1))


def startup():
    a = time.perf_counter()
    m, x, y, _ = build("W1")
    opt = make_opt(m)
    one_step(m, opt, x, y)
    b = time.perf_counter()
    one_step(m, opt, x, y)
    emit(config="W1", import_s=round(T_IMPORT, 3), build_and_first_step_s=round(b - a, 3), second_step_s=round(time.perf_counter() - b, 4),
         script_total_s=round(time.perf_counter() - T_PROC, 3), rss_mb=rss_mb())


{"train": train, "decode": decode, "attn": attn, "profile": profile, "startup": startup}[args.what]()
