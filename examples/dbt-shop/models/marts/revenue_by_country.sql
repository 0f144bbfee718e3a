select c.country, sum(o.amount) as revenue
from {{ ref('orders') }} o join {{ ref('customers') }} c using (customer_id) group by c.country
