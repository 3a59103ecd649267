import sys, json
from millpond.config import load
from millpond.trainers.common.session import start_run
from millpond.trainers.ppo.trainer import PPOTrainer
import tempfile, io, contextlib
from pathlib import Path
name, seed, extra = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
import shutil; shutil.rmtree(f'/tmp/wt/runs/mr/{name}', ignore_errors=True)
base = {"run_dir": "/tmp/wt/runs/mr", "seed": seed, "log.tensorboard": False, "eval.interval": None, "checkpoint.interval": None}
loaded = load("benchmarks/learning/pendulum.yaml", [*(f"{k}={json.dumps(v)}" for k,v in base.items()), *extra])
t = PPOTrainer(loaded, start_run(loaded, name))
with contextlib.redirect_stdout(io.StringIO()):
    t.train()
t.close()
recs=[json.loads(l) for l in open(f'/tmp/wt/runs/mr/{name}/metrics.jsonl')]
n=len(recs)
for r in recs[:: max(1,n//12)]+[recs[-1]]:
    print(name, r['agent_steps'], *(f"{k}={r[k]:.4g}" for k in ('episode_return','R_loss','R_explained','learned_reward_per_agent_step','value_loss','explained_variance','time/reward','eval/episode_return') if k in r), f"{r['seconds']:.0f}s", flush=True)
