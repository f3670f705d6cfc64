#include <criterion/criterion.h>
#include <string.h>

#include "config_texts.h"
#include "model_tools.h"

/* 'm' experts or 'd' dense, 'S' upper case where the layer slides. */
static const char *layers_of(const struct model_config *config)
{
    static char text[MODEL_LAYERS_MAX + 1];
    for (int64_t i = 0; i < config->layer_count; i++) {
        char kind = config->layers[i].ffn == FFN_MOE ? 'm' : 'd';
        text[i] = (char)(config->layers[i].sliding ? kind - 'a' + 'A' : kind);
    }
    text[config->layer_count] = 0;
    return text;
}

Test(config_layers, dense_and_sliding)
{
#define SLIDE "'use_sliding_window':true,'sliding_window':16"
    static const struct {
        const char *base, *changes, *layers;
        int64_t dense_dim, window;
    } rows[] = {
        {MIXTRAL_JSON, "{}", "mmmm", 0, 0},
        {MIXTRAL_JSON, "{'sliding_window':100}", "MMMM", 0, 100},
        {MIXTRAL_JSON, "{'sliding_window':'$delete'}", "mmmm", 0, 0},
        /* Mixtral has no switch */
        {MIXTRAL_JSON, "{'sliding_window':100,'use_sliding_window':false}", "MMMM", 0, 100},
        /* a window that is switched off is ignored, whatever it is */
        {QWEN2_JSON, "{}", "mmmm", 0, 0},
        {QWEN2_JSON, "{'sliding_window':0}", "mmmm", 0, 0},
        {QWEN2_JSON, "{'use_sliding_window':'$delete'}", "mmmm", 0, 0},
        {QWEN3_JSON, "{'sliding_window':4096}", "mmmm", 0, 0},
        /* Qwen2Moe: even layers below max_window_layers (3), or layer_types */
        {QWEN2_JSON, "{" SLIDE "}", "MmMm", 0, 16},
        {QWEN2_JSON, "{" SLIDE ",'max_window_layers':1}", "Mmmm", 0, 16},
        {QWEN2_JSON, "{" SLIDE ",'max_window_layers':0}", "mmmm", 0, 0},
        {QWEN2_JSON, "{" SLIDE ",'max_window_layers':'$delete'}", "MmMm", 0, 16},
        {QWEN2_JSON, "{'use_sliding_window':true,'sliding_window':'$delete'}", "MmMm", 0, 4096},
        {QWEN2_JSON,
         "{" SLIDE ",'layer_types':['full_attention','sliding_attention','full_attention',"
         "'full_attention']}",
         "mMmm", 0, 16},
        {QWEN2_JSON,
         "{'layer_types':['full_attention','full_attention','full_attention','full_attention']}",
         "mmmm", 0, 0},
        /* Qwen3Moe: all layers, max_window_layers or not */
        {QWEN3_JSON, "{" SLIDE ",'max_window_layers':1}", "MMMM", 0, 16},
        {QWEN3_JSON, "{'use_sliding_window':true,'sliding_window':null}", "mmmm", 0, 0},
        /* dense layers */
        {QWEN2_JSON, "{'decoder_sparse_step':2}", "dmdm", 128, 0},
        {QWEN2_JSON, "{'decoder_sparse_step':3}", "ddmd", 128, 0},
        {QWEN2_JSON, "{'mlp_only_layers':[0,3]}", "dmmd", 128, 0},
        {QWEN2_JSON, "{'mlp_only_layers':null}", "mmmm", 0, 0},
        {QWEN2_JSON, "{'intermediate_size':'$delete'}", "mmmm", 0, 0},
        {QWEN3_JSON, "{'mlp_only_layers':[1],'decoder_sparse_step':2}", "dddm", 128, 0},
        {QWEN3_JSON, "{'mlp_only_layers':[0]," SLIDE "}", "DMMM", 128, 16},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct model_config config = config_of(rows[i].base, rows[i].changes);
        cr_expect_str_eq(layers_of(&config), rows[i].layers, "%s", rows[i].changes);
        cr_expect_eq(config.dense_dim, rows[i].dense_dim, "%s", rows[i].changes);
        cr_expect_eq(config.sliding_window, rows[i].window, "%s", rows[i].changes);
    }
}

Test(config_layers, refuses_by_key)
{
    static const struct config_row rows[] = {
        {QWEN2_JSON, "{'decoder_sparse_step':0}", STATUS_FORMAT, "\"decoder_sparse_step\""},
        {QWEN2_JSON, "{'decoder_sparse_step':5}", STATUS_UNSUPPORTED,
         "\"decoder_sparse_step\"|\"mlp_only_layers\"|no layer with experts"},
        {QWEN3_JSON, "{'mlp_only_layers':[0,1,2,3]}", STATUS_UNSUPPORTED, "no layer with experts"},
        {QWEN3_JSON, "{'mlp_only_layers':[4]}", STATUS_FORMAT, "\"mlp_only_layers\"|0 to 3"},
        {QWEN3_JSON, "{'mlp_only_layers':[-1]}", STATUS_FORMAT, "\"mlp_only_layers\""},
        {QWEN3_JSON, "{'mlp_only_layers':['0']}", STATUS_FORMAT, "\"mlp_only_layers\""},
        {QWEN3_JSON, "{'mlp_only_layers':3}", STATUS_FORMAT, "\"mlp_only_layers\"|an integer"},
        {QWEN3_JSON, "{'mlp_only_layers':[0],'intermediate_size':0}", STATUS_FORMAT,
         "\"intermediate_size\""},
        {MIXTRAL_JSON, "{'sliding_window':0}", STATUS_FORMAT, "\"sliding_window\""},
        {QWEN2_JSON, "{'use_sliding_window':true,'sliding_window':null}", STATUS_FORMAT,
         "\"use_sliding_window\"|\"sliding_window\""},
        {QWEN2_JSON, "{'use_sliding_window':'yes'}", STATUS_FORMAT, "\"use_sliding_window\""},
        {QWEN2_JSON, "{'layer_types':['full_attention']}", STATUS_FORMAT,
         "\"layer_types\"|\"num_hidden_layers\""},
        {QWEN2_JSON,
         "{'layer_types':['full_attention','full_attention','full_attention',"
         "'linear_attention']}",
         STATUS_UNSUPPORTED, "\"layer_types\"|layer 3|linear_attention"},
        {QWEN2_JSON,
         "{'layer_types':['sliding_attention','full_attention','full_attention',"
         "'full_attention']}",
         STATUS_FORMAT, "\"layer_types\"|layer 0|\"use_sliding_window\""},
        {MIXTRAL_JSON,
         "{'sliding_window':16,'layer_types':['sliding_attention','full_attention',"
         "'sliding_attention','sliding_attention']}",
         STATUS_FORMAT, "\"layer_types\"|layer 1"},
    };
    CHECK_CONFIG_ROWS(rows);
}
