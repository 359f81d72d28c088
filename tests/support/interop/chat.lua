-- wrk: one chat request again and again; STREAM=1 asks for server-sent events. Counts whole answers.
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '{"model":"sim","messages":[{"role":"user","content":"hi"}],"max_tokens":3,"stream":'
  .. (os.getenv("STREAM") == "1" and "true" or "false") .. '}'
local threads, bad = {}, 0
function setup(thread) table.insert(threads, thread) end
function init() whole = 0 end
function response(status, headers, body)
  local last = os.getenv("STREAM") == "1" and "%[DONE%]%s*$" or '"finish_reason"'
  if status == 200 and body:find(last) then whole = whole + 1 end
end
function done(summary, latency, requests)
  local whole = 0
  for _, thread in ipairs(threads) do whole = whole + thread:get("whole") end
  local e = summary.errors
  io.write(string.format("RESULT requests=%d whole=%d errors=%d\n", summary.requests, whole,
    e.connect + e.read + e.write + e.status + e.timeout))
end
