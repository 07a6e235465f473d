-- Names in queries of dashboards.
--
-- A variable holds names encoded by `encodeURLComponent`, and its format `percentencode` encodes the value again. So a
-- literal around it has letters, digits, `-`, `_`, `.`, `~` and `%` only, and no name is ever SQL. Both return what
-- these encode; an empty variable is the empty name.
CREATE OR REPLACE FUNCTION epwatch_name ${on_cluster} AS (code) ->
    decodeURLComponent(decodeURLComponent(code));

-- Several values arrive in braces with commas in between, one without.
CREATE OR REPLACE FUNCTION epwatch_names ${on_cluster} AS (codes) ->
    arrayMap(code -> decodeURLComponent(code), splitByChar(',', trim(BOTH '{}' FROM decodeURLComponent(codes))));
