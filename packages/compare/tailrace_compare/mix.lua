-- An application with several kinds of views, for wrk -s: 65 % of the requests are for a short page, 30 % for one that
-- waits, 5 % for one that computes. The order is the same in each run.
local short, waits, computes

function init()
   math.randomseed(1)
   short, waits, computes = wrk.format("GET", "/"), wrk.format("GET", "/waits"), wrk.format("GET", "/computes")
end

function request()
   local number = math.random(100)
   return number <= 65 and short or number <= 95 and waits or computes
end
