"""llama.cpp's server in this process, from the wheel xllamacpp: ``FILE -c TOKENS [--exact] [--draft FILE] --port N``"""

import argparse
import time

import xllamacpp

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--port", type=int)
parser.add_argument("-c", type=int, default=0)
parser.add_argument("--exact", action="store_true")
parser.add_argument("--draft")
given = parser.parse_args()

params = xllamacpp.CommonParams()
params.model.path, params.port, params.n_ctx, params.n_parallel = given.model, given.port, given.c, 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup = params.fit_params = False
if given.exact:  # caches in float32, no flash attention
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
if given.draft:
    params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    params.speculative.draft.mparams.path = given.draft
server = xllamacpp.Server(params)
while True:
    time.sleep(1)
