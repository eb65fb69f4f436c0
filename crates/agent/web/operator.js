// Orders to the agent from a user who has the token.

const place = document.getElementById("operator");
const form = document.getElementById("orders");
const answer = document.getElementById("answer");
const token = document.getElementById("token");
const policy = document.getElementById("policy");

/** Shows the form where orders are taken. */
export function showOperator(facts) {
  place.hidden = !facts.control;
  const options = facts.policies.map((name) => new Option(name, name));
  const chosen = policy.value;
  policy.replaceChildren(...options);
  if (facts.policies.includes(chosen)) policy.value = chosen;
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const order = { do: event.submitter?.value ?? "pause" };
  if (order.do === "policy") order.name = policy.value;
  busy(true);
  answer.textContent = "waiting for the end of the epoch …";
  try {
    answer.textContent = await send(order);
  } catch (error) {
    answer.textContent = String(error.message ?? error);
  }
  busy(false);
});

function busy(is) {
  for (const button of form.querySelectorAll("button")) button.disabled = is;
}

async function send(order) {
  const reply = await fetch("api/control", {
    method: "POST",
    headers: { "Content-Type": "application/json", Authorization: `Bearer ${token.value.trim()}` },
    body: JSON.stringify(order),
  });
  const result = await reply.json().catch(() => ({}));
  return result.done ?? `refused: ${result.error ?? reply.status}`;
}
