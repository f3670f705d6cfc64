#include <criterion/criterion.h>
#include <math.h>

#include "config_texts.h"
#include "model_tools.h"

static struct rope_config rope_of(const char *base, const char *changes)
{
    return config_of(base, changes).rope;
}

Test(config_rope, theta_of_both_versions)
{
    cr_expect_float_eq(rope_of(MIXTRAL_JSON, "{}").theta, 1e6, 0);
    cr_expect_float_eq(rope_of(MIXTRAL_JSON, "{'rope_theta':1000000}").theta, 1e6, 0);
    cr_expect_float_eq(rope_of(MIXTRAL_JSON, "{'rope_theta':5e4}").theta, 5e4, 0);
    cr_expect_float_eq(rope_of(MIXTRAL_JSON, "{'rope_theta':'$delete','rope_parameters':"
                                             "{'rope_theta':12345.0,'rope_type':'default'}}")
                           .theta,
                       12345, 0);
    cr_expect_float_eq(rope_of(MIXTRAL_JSON, "{'rope_scaling':null,'rope_parameters':"
                                             "{'rope_theta':1000000,'rope_type':'default'}}")
                           .theta,
                       1e6, 0);
    cr_expect_eq(rope_of(MIXTRAL_JSON, "{'rope_scaling':{}}").kind, ROPE_PLAIN);
    cr_expect_float_eq(rope_of(MIXTRAL_JSON, "{}").attention_factor, 1, 0);
}

/* As the classes of transformers: MixtralConfig 1e6, the others 1e4. */
Test(config_rope, missing_theta_is_the_default_of_the_class)
{
    cr_expect_float_eq(rope_of(MIXTRAL_JSON, "{'rope_theta':'$delete'}").theta, 1e6, 0);
    cr_expect_float_eq(rope_of(QWEN2_JSON, "{'rope_theta':'$delete'}").theta, 1e4, 0);
    cr_expect_float_eq(rope_of(QWEN3_JSON, "{'rope_theta':'$delete'}").theta, 1e4, 0);
}

Test(config_rope, reads_each_kind)
{
    struct rope_config rope =
        rope_of(QWEN3_JSON, "{'rope_scaling':{'type':'linear','factor':2.5}}");
    cr_expect_eq(rope.kind, ROPE_LINEAR);
    cr_expect_float_eq(rope.factor, 2.5, 0);
    cr_expect_float_eq(rope.theta, 1e6, 0);

    rope = rope_of(QWEN3_JSON,
                   "{'rope_scaling':{'rope_type':'llama3','factor':8.0,'low_freq_factor':1.0,"
                   "'high_freq_factor':4.0,'original_max_position_embeddings':512}}");
    cr_expect_eq(rope.kind, ROPE_LLAMA3);
    cr_expect_float_eq(rope.high_freq_factor, 4, 0);
    cr_expect_float_eq(rope.low_freq_factor, 1, 0);
    cr_expect_float_eq(rope.original_max_positions, 512, 0);
    cr_expect_float_eq(rope.attention_factor, 1, 0);

    rope = rope_of(QWEN3_JSON, "{'rope_scaling':{'type':'yarn','factor':4.0,"
                               "'original_max_position_embeddings':512}}");
    cr_expect_eq(rope.kind, ROPE_YARN);
    cr_expect_float_eq(rope.factor, 4, 0);
    cr_expect_float_eq(rope.attention_factor, 0.1 * log(4.0) + 1, 1e-12);
    cr_expect_float_eq(rope.beta_fast, 32, 0);
    cr_expect_float_eq(rope.beta_slow, 1, 0);
    cr_expect(rope.truncate);
    cr_expect_float_eq(rope.original_max_positions, 512, 0);
}

Test(config_rope, yarn_follows_transformers)
{
    static const struct {
        const char *parameters;
        double factor, attention_factor, original;
    } rows[] = {
        /* without original_max_position_embeddings: max_position_embeddings */
        {"'factor':4.0", 4, 1.1386294361119891, 2048},
        {"'factor':1.0", 1, 1, 2048},
        {"'factor':4.0,'attention_factor':0.75", 4, 0.75, 2048},
        /* the ratio, when both mscales are given */
        {"'factor':4.0,'mscale':0.707,'mscale_all_dim':0.707", 4, 1, 2048},
        {"'factor':40,'mscale':1.0,'mscale_all_dim':0.5", 40, 1.1557219901962608, 2048},
        {"'factor':4.0,'mscale':0.707", 4, 1.1386294361119891, 2048},
        /* a null factor is the ratio of the lengths */
        {"'factor':null,'original_max_position_embeddings':256", 8, 1.2079441541679836, 256},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char changes[256];
        snprintf(changes, sizeof changes, "{'rope_scaling':{'rope_type':'yarn',%s}}",
                 rows[i].parameters);
        struct rope_config rope = rope_of(QWEN3_JSON, changes);
        cr_expect_float_eq(rope.factor, rows[i].factor, 1e-12, "%s", changes);
        cr_expect_float_eq(rope.attention_factor, rows[i].attention_factor, 1e-9, "%s: %.17g",
                           changes, rope.attention_factor);
        cr_expect_float_eq(rope.original_max_positions, rows[i].original, 0, "%s", changes);
    }
    struct rope_config rope = rope_of(
        QWEN3_JSON, "{'original_max_position_embeddings':128,'rope_scaling':{'rope_type':'yarn',"
                    "'factor':2,'original_max_position_embeddings':256,'truncate':false,"
                    "'beta_fast':16,'beta_slow':0}}");
    cr_expect_float_eq(rope.original_max_positions, 128, 0, "the outer key goes first");
    cr_expect_not(rope.truncate);
    cr_expect_float_eq(rope.beta_fast, 16, 0);
    cr_expect_float_eq(rope.beta_slow, 1, 0, "0 stands for the default");
}

Test(config_rope, parameters_per_layer_type)
{
    struct rope_config rope =
        rope_of(QWEN2_JSON,
                "{'rope_theta':'$delete','rope_parameters':{"
                "'full_attention':{'rope_type':'default','rope_theta':777.0},"
                "'sliding_attention':{'rope_type':'default','rope_theta':777.0},'other':null}}");
    cr_expect_float_eq(rope.theta, 777, 0);
}

Test(config_rope, refuses_by_name)
{
#define SCALING(text) "{'rope_scaling':{" text "}}"
    static const struct config_row rows[] = {
        {QWEN3_JSON, SCALING("'type':'dynamic','factor':2.0"), STATUS_UNSUPPORTED,
         "rope_scaling|\"dynamic\"|default, linear, yarn and llama3"},
        {QWEN3_JSON, SCALING("'factor':4.0"), STATUS_UNSUPPORTED, "\"factor\""},
        {QWEN3_JSON, SCALING("'rope_type':'linear','factor':2.0,'short_factor':[1]"),
         STATUS_UNSUPPORTED, "\"short_factor\""},
        {QWEN3_JSON, "{'rope_scaling':{'a':{'b':{'c':1}}}}", STATUS_UNSUPPORTED, "\"b\""},
        {QWEN3_JSON, SCALING("'rope_type':'longrope'"), STATUS_UNSUPPORTED, "\"longrope\""},
        {QWEN3_JSON, SCALING("'rope_type':'proportional'"), STATUS_UNSUPPORTED, "\"proportional\""},
        {QWEN3_JSON, SCALING("'rope_type':7"), STATUS_FORMAT, "\"rope_type\"|an integer"},
        {QWEN3_JSON, SCALING("'rope_type':'yarn','type':'linear','factor':2"), STATUS_FORMAT,
         "\"type\" (linear)|\"rope_type\" (yarn)|contradict"},
        {QWEN3_JSON, SCALING("'rope_type':'yarn'"), STATUS_FORMAT, "rope_scaling|\"factor\""},
        {QWEN3_JSON, SCALING("'rope_type':'linear'"), STATUS_FORMAT, "\"factor\""},
        {QWEN3_JSON, SCALING("'rope_type':'linear','factor':0.5"), STATUS_FORMAT, "\"factor\"|0.5"},
        {QWEN3_JSON, SCALING("'rope_type':'llama3','factor':8,'low_freq_factor':1"), STATUS_FORMAT,
         "\"high_freq_factor\""},
        {QWEN3_JSON,
         SCALING("'rope_type':'llama3','factor':8,'low_freq_factor':4,'high_freq_factor':4"),
         STATUS_FORMAT, "\"high_freq_factor\" (4)|\"low_freq_factor\""},
        {QWEN3_JSON, SCALING("'rope_type':'yarn','factor':2,'attention_factor':0"), STATUS_FORMAT,
         "\"attention_factor\""},
        {QWEN3_JSON, SCALING("'partial_rotary_factor':0.5"), STATUS_UNSUPPORTED,
         "\"partial_rotary_factor\" 0.5"},
        {QWEN3_JSON, "{'partial_rotary_factor':0.25}", STATUS_UNSUPPORTED,
         "\"partial_rotary_factor\" 0.25"},
        {QWEN3_JSON, "{'rope_scaling':'yarn'}", STATUS_FORMAT, "\"rope_scaling\"|a string"},
        {QWEN3_JSON, "{'rope_theta':0}", STATUS_FORMAT, "\"rope_theta\""},
        {QWEN3_JSON, "{'rope_theta':'1e6'}", STATUS_FORMAT, "\"rope_theta\"|a string"},
        {QWEN3_JSON, "{'rope_parameters':{'rope_theta':10000.0}}", STATUS_FORMAT,
         "\"rope_theta\" is 1e+06, but 10000"},
        {QWEN3_JSON,
         "{'rope_scaling':{'type':'linear','factor':2},'rope_parameters':{'rope_type':'default'}}",
         STATUS_FORMAT, "\"rope_scaling\"|\"rope_parameters\"|contradict"},
        {QWEN3_JSON,
         "{'rope_parameters':{'full_attention':{'rope_theta':1e6},"
         "'sliding_attention':{'rope_theta':2e6}}}",
         STATUS_UNSUPPORTED, "\"rope_parameters\"|full_attention|sliding_attention"},
        {QWEN3_JSON, "{'rope_parameters':{'full_attention':{},'rope_theta':1e6}}", STATUS_FORMAT,
         "\"rope_parameters\"|\"rope_theta\""},
    };
    CHECK_CONFIG_ROWS(rows);
}
