/* Prompts that begin alike in several data-parallel groups, and prompts of more than 32k tokens. */
#include <criterion/criterion.h>

#include "base/random.h"
#include "engine_tools.h"
#include "phasor.h"
#include "prefix_rig.h"

/* ---- Groups ---------------------------------------------------------------------------------- */

Test(prefix, groups_are_balanced_and_documents_stay_in_one)
{
    static struct prompt prompts[PROMPTS_MAX];
    static struct heard traces[PROMPTS_MAX];
    struct limits limits = {
        .plan = "dp2|ep2", .sequences = 40, .batch_tokens = 256, .pages = 60, .shares = true};
    struct rig rig;
    rig_open(&rig, &limits);
    for (int i = 0; i < 9; i++) { /* nothing in common: 100, 110, ... tokens */
        prompts[i] = prompt_of(100 + (uint64_t)i, 100 + 10 * i, 0, 0);
        submit(&rig, &prompts[i], &traces[i]);
    }
    step(&rig);
    int64_t difference = rig.generator->loads[0].token_count - rig.generator->loads[1].token_count;
    cr_assert(difference >= -200 && difference <= 200, "%lld", (long long)difference);
    run(&rig);
    int64_t computed = counters(&rig).prefill_tokens;
    for (int i = 0; i < 20; i++) { /* two documents, ten questions each */
        prompts[i] = prompt_of(1 + (uint64_t)i % 2, 320, (uint64_t)i, 10);
        submit(&rig, &prompts[i], &traces[i]);
    }
    step(&rig);
    cr_assert_eq(rig.generator->loads[0].sequence_count, 10);
    cr_assert_eq(rig.generator->loads[1].sequence_count, 10);
    run(&rig);
    cr_assert_eq(counters(&rig).prefill_tokens - computed, 2 * 320 + 20 * 10);
    cr_assert_eq(rig.generator->loads[0].token_count, 0);
    rig_close(&rig);
}

/* One document and many questions: the second group computes it, too, once the first has as much
 * more to do as that costs, not before. */
Test(prefix, a_document_spreads_when_its_group_has_much_to_do)
{
    static struct prompt prompts[PROMPTS_MAX];
    static struct heard traces[PROMPTS_MAX];
    static const struct {
        int count;
        int64_t times;
    } cases[] = {{5, 1}, {40, 2}};
    for (int c = 0; c < 2; c++) {
        struct rig rig;
        rig_open(&rig, &(struct limits){.plan = "dp2|ep2",
                                        .sequences = 64,
                                        .batch_tokens = 256,
                                        .pages = 120,
                                        .shares = true});
        for (int i = 0; i < cases[c].count; i++) {
            prompts[i] = prompt_of(1, 256, (uint64_t)i, 30);
            submit(&rig, &prompts[i], &traces[i]);
        }
        run(&rig);
        cr_assert_eq(counters(&rig).prefill_tokens,
                     cases[c].times * 256 + (int64_t)cases[c].count * 30);
        rig_close(&rig);
    }
}

/* ---- Long prompts ---------------------------------------------------------------------------- */

#define LONG_TOKENS 33000

static const char long_config[] =
    "{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"hidden_size\":32,"
    "\"intermediate_size\":32,\"num_attention_heads\":1,\"num_key_value_heads\":1,\"head_dim\":16,"
    "\"num_hidden_layers\":1,\"num_local_experts\":2,\"num_experts_per_tok\":1,\"vocab_size\":128,"
    "\"max_position_embeddings\":131072,\"rope_theta\":1000000.0,\"rms_norm_eps\":1e-05,"
    "\"hidden_act\":\"silu\",\"bos_token_id\":1,\"eos_token_id\":2,\"sliding_window\":null,"
    "\"tie_word_embeddings\":false,\"torch_dtype\":\"bfloat16\"}";

static void synth(const char *config, const char *dir)
{
    struct phasor_error err;
    struct phasor_synth_params params = phasor_synth_params_default();
    tools_write_file(config, long_config, sizeof long_config - 1);
    params.preset = config;
    params.output_dir = dir;
    cr_assert_eq(phasor_synth(&params, &err), PHASOR_OK, "%s", err.message);
}

/* Prompts of more than 32k tokens go in chunks, whatever these are, and are shared. */
Test(prefix, long_prompts_go_in_chunks, .timeout = 600)
{
    static int32_t ids[LONG_TOKENS];
    static struct heard traces[3];
    struct random random = {.seed = 9};
    const char *dir = tools_path(tools_folder(), "long");
    synth(tools_path(tools_folder(), "config.json"), dir);
    for (int i = 0; i < LONG_TOKENS; i++)
        ids[i] = (int32_t)random_below(&random, VOCAB);
    for (int i = 0; i < 3; i++) {
        struct rig rig;
        struct error err;
        rig_open(&rig, &(struct limits){.model = dir,
                                        .dtype = DTYPE_BF16,
                                        .plan = i == 2 ? "dp2|ep2" : NULL,
                                        .sequences = 2,
                                        .batch_tokens = i == 0 ? 2048 : 777,
                                        .context = 40000,
                                        .pages = 530,
                                        .shares = true});
        struct sequence_request request = {.prompt = ids,
                                           .prompt_count = LONG_TOKENS,
                                           .token_count_max = TOKENS_MAX,
                                           .ignore_eos = true,
                                           .logprobs = 0,
                                           .callbacks = trace_callbacks,
                                           .context = &traces[i]};
        check(generator_submit(rig.generator, &request, &err), &err);
        run(&rig);
        cr_assert_eq(counters(&rig).prefill_tokens, LONG_TOKENS);
        struct heard again = {0};
        request.context = &again;
        check(generator_submit(rig.generator, &request, &err), &err);
        run(&rig);
        cr_assert_eq(counters(&rig).shared_tokens, LONG_TOKENS / KV_PAGE_TOKENS * KV_PAGE_TOKENS);
        cr_assert_arr_eq(&again, &traces[i], sizeof again);
        cr_assert_arr_eq(&traces[0], &traces[i], sizeof again, "%d", i);
        rig_close(&rig);
    }
}
